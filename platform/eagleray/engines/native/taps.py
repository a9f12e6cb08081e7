"""The layers whose outputs somebody reads, and which of them each reader gets."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Taps:
    """What a forward returns."""

    layers: tuple[int, ...]
    drafter: slice | list[int]
    capture: slice | list[int] | None

    @classmethod
    def join(cls, drafter: tuple[int, ...], capture: tuple[int, ...] | None) -> "Taps":
        """Tap each wanted layer once."""
        layers = tuple(sorted({*drafter, *(capture or ())}))
        return cls(
            layers=layers,
            drafter=_places(drafter, layers),
            capture=None if capture is None else _places(capture, layers),
        )


def _places(wanted: tuple[int, ...], layers: tuple[int, ...]) -> slice | list[int]:
    return slice(None) if wanted == layers else [layers.index(layer) for layer in wanted]

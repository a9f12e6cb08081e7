"""A search space as Optuna sees it: conditional parameters, suggested one after the other.

The drafter is chosen first; its parameters carry its label in front (`dflash.block_size`), so that each
exists under its own condition and no two drafters share one.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from eagleray.errors import ConfigError
from eagleray.tuning.config import PLAIN, Choice, Integer, Parameter, Point, Real, Scalar, SpaceConfig

if TYPE_CHECKING:
    import optuna

DRAFTER = "drafter"
"""Name of the parameter that chooses."""


class Space:
    """What a study may choose from."""

    def __init__(self, config: SpaceConfig):
        self.config = config
        self.labels = ([PLAIN] if config.plain else []) + list(config.drafters)

    @property
    def finite(self) -> bool:
        """Whether the points can be counted."""
        return not any(
            isinstance(parameter, Real) and parameter.low < parameter.high
            for parameters in self.config.drafters.values()
            for parameter in parameters.values()
        )

    def suggest(self, trial: "optuna.Trial") -> Point:
        """Let the sampler choose a point."""
        drafter = trial.suggest_categorical(DRAFTER, self.labels)
        values: dict[str, Scalar] = {}
        for name, parameter in self._parameters(drafter).items():
            if _exists(parameter, values):
                values[name] = _suggest(trial, f"{drafter}.{name}", parameter, values)
        return Point(drafter=drafter, values=values)

    def points(self) -> Iterator[Point]:
        """All points, in the order of the recipe.

        Raises:
            ConfigError: A parameter is a real number, so that there is no end of them.
        """
        if not self.finite:
            raise ConfigError(
                "This space has parameters of kind real and cannot be taken point by point. Make them "
                "choices, or set study.sampler to tpe or random."
            )
        yield from self.corners()

    def corners(self) -> Iterator[Point]:
        """All points of a finite space; of others those with real parameters at the ends of their ranges."""
        for label in self.labels:
            yield from _points(label, list(self._parameters(label).items()), {})

    def params(self, point: Point) -> dict[str, Scalar]:
        """The point as Optuna's parameters.

        Raises:
            ConfigError: It is not in the space; says which value is not.
        """
        if point.drafter not in self.labels:
            raise ConfigError(
                f"Point {point.name!r} names the drafter {point.drafter!r}; the space has "
                f"{', '.join(self.labels)}."
            )
        values: dict[str, Scalar] = {}
        for name, parameter in self._parameters(point.drafter).items():
            if not _exists(parameter, values):
                continue
            if name not in point.values or not _holds(parameter, point.values[name], values):
                raise ConfigError(
                    f"Point {point.name!r}: {name} is {point.values.get(name)!r}, which the space of "
                    f"{point.drafter} does not hold ({parameter.model_dump(exclude_defaults=True)})."
                )
            values[name] = point.values[name]
        if surplus := sorted(point.values.keys() - values.keys()):
            raise ConfigError(f"Point {point.name!r}: {surplus[0]} does not exist under these values.")
        return {
            DRAFTER: point.drafter,
            **{f"{point.drafter}.{name}": value for name, value in values.items()},
        }

    def point(self, params: Mapping[str, Scalar]) -> Point | None:
        """The point that a trial's parameters name; None while the trial has not all of them."""
        drafter = params.get(DRAFTER)
        if not isinstance(drafter, str) or drafter not in self.labels:
            return None
        values: dict[str, Scalar] = {}
        for name, parameter in self._parameters(drafter).items():
            if _exists(parameter, values):
                if f"{drafter}.{name}" not in params:
                    return None
                values[name] = params[f"{drafter}.{name}"]
        return Point(drafter=drafter, values=values)

    def _parameters(self, label: str) -> dict[str, Parameter]:
        return {} if label == PLAIN else self.config.drafters[label]


def _exists(parameter: Parameter, values: Mapping[str, Scalar]) -> bool:
    return all(name in values and values[name] in allowed for name, allowed in parameter.when.items())


def _high(parameter: Integer, values: Mapping[str, Scalar]) -> int:
    """The largest value, given those chosen before."""
    if parameter.below is None:
        return parameter.high
    bound = values.get(parameter.below)
    return min(parameter.high, bound - 1) if isinstance(bound, int) else parameter.high


def _suggest(trial: "optuna.Trial", name: str, parameter: Parameter, values: Mapping[str, Scalar]) -> Scalar:
    if isinstance(parameter, Choice):
        chosen: Scalar = trial.suggest_categorical(name, parameter.values)
        return chosen
    if isinstance(parameter, Integer):
        high = _high(parameter, values)
        return int(trial.suggest_int(name, parameter.low, high, step=parameter.step, log=parameter.log))
    return float(trial.suggest_float(name, parameter.low, parameter.high, log=parameter.log))


def _holds(parameter: Parameter, value: Scalar, values: Mapping[str, Scalar]) -> bool:
    if isinstance(parameter, Choice):
        return value in parameter.values
    if isinstance(parameter, Integer):
        steps = range(parameter.low, _high(parameter, values) + 1, parameter.step)
        return isinstance(value, int) and value in steps
    return isinstance(value, int | float) and parameter.low <= value <= parameter.high


def _points(
    label: str, parameters: list[tuple[str, Parameter]], values: dict[str, Scalar]
) -> Iterator[Point]:
    if not parameters:
        yield Point(drafter=label, values=values)
        return
    (name, parameter), rest = parameters[0], parameters[1:]
    if not _exists(parameter, values):
        yield from _points(label, rest, values)
        return
    for value in _choices(parameter, values):
        yield from _points(label, rest, {**values, name: value})


def _choices(parameter: Parameter, values: Mapping[str, Scalar]) -> tuple[Scalar, ...]:
    if isinstance(parameter, Choice):
        return parameter.values
    if isinstance(parameter, Integer):
        return tuple(range(parameter.low, _high(parameter, values) + 1, parameter.step))
    return tuple(dict.fromkeys((parameter.low, parameter.high)))

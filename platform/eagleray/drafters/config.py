"""What every drafter's settings can answer on paper, before there is a tensor."""

from abc import abstractmethod

from eagleray.settings import Settings
from eagleray.targets.geometry import TargetGeometry


class DrafterConfig(Settings):
    """Base of the settings of all drafters."""

    name: str
    """Which drafter this is; members of the union narrow it to one word."""

    @abstractmethod
    def tapped_layers(self, num_layers: int) -> tuple[int, ...]:
        """Layers of a target of `num_layers` layers whose outputs the drafter reads, 0-based."""

    @abstractmethod
    def num_parameters(self, geometry: TargetGeometry) -> int:
        """Trainable parameters of a drafter for this target."""

    @property
    @abstractmethod
    def max_depth(self) -> int | None:
        """Largest draft depth in tokens; None is unbounded."""

"""What the studies of serving and of training have in common."""

from collections.abc import Sequence
from dataclasses import dataclass

from eagleray.evaluation.interleaved import GroupTimes
from eagleray.evaluation.regime import Regime
from eagleray.tuning.config import Point, ServingSweep, TrainingSweep
from eagleray.tuning.outcome import Outcome, Scale, summarise
from eagleray.tuning.study import Study


@dataclass(kw_only=True)
class Trials:
    """A study, and what turns measurements of its trials into figures."""

    study: Study
    sweep: ServingSweep | TrainingSweep
    regime: Regime
    scale: Scale

    def summarise(self, point: Point, groups: Sequence[GroupTimes], place: int, wall_s: float) -> Outcome:
        """Figures of one of the settings of some groups."""
        return summarise(
            point,
            groups,
            place=place,
            regime=self.regime.fingerprint,
            scale=self.scale,
            config=self.sweep.study.bootstrap,
            wall_s=wall_s,
        )

"""Where a run stands; together with the dataset and the settings it decides all that follows."""

from eagleray.settings import Settings


class TrainingState(Settings):
    """Counters of a run, as stored in its checkpoints."""

    fingerprint: str
    """Of everything that must not change over a resume: settings, dataset, target."""

    step: int = 0
    """Optimiser steps done; also the position in the data."""

    supervised_tokens: int = 0
    """Answer tokens seen, every pass counted."""

    loss: float | None = None
    """Of the latest step."""

    best_step: int | None = None
    """The step with the highest replay tau so far; of equals, the latest. None: none was measured."""

    best_replay_tau: float | None = None
    """Replay tau at `best_step`."""

    def after(self, *, supervised_tokens: int, loss: float) -> "TrainingState":
        """The state one step later."""
        return self.model_copy(
            update={
                "step": self.step + 1,
                "supervised_tokens": self.supervised_tokens + supervised_tokens,
                "loss": loss,
            }
        )

    def judged(self, replay_tau: float) -> "TrainingState":
        """The state with this step's replay tau taken into account."""
        if self.best_replay_tau is not None and replay_tau < self.best_replay_tau:
            return self
        return self.model_copy(update={"best_step": self.step, "best_replay_tau": replay_tau})

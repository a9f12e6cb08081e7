"""Where a run stands; together with the dataset and the settings it decides all that follows."""

from eagleray.settings import Settings

AVERAGED_STEPS = 20


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

    loss_average: float | None = None
    """Exponential average over about `AVERAGED_STEPS` steps: what a warm start from these weights must be
    close to at its first step."""

    best_step: int | None = None
    """The step with the highest replay tau so far; of equals, the latest. None: none was measured."""

    best_replay_tau: float | None = None
    """Replay tau at `best_step`."""

    def after(self, *, supervised_tokens: int, loss: float) -> "TrainingState":
        """The state one step later."""
        before = self.loss_average
        return self.model_copy(
            update={
                "step": self.step + 1,
                "supervised_tokens": self.supervised_tokens + supervised_tokens,
                "loss": loss,
                "loss_average": loss if before is None else before + (loss - before) / AVERAGED_STEPS,
            }
        )

    def judged(self, replay_tau: float) -> "TrainingState":
        """The state with this step's replay tau taken into account."""
        if self.best_replay_tau is not None and replay_tau < self.best_replay_tau:
            return self
        return self.model_copy(update={"best_step": self.step, "best_replay_tau": replay_tau})

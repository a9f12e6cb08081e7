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

    def after(self, *, supervised_tokens: int, loss: float) -> "TrainingState":
        """The state one step later."""
        return self.model_copy(
            update={
                "step": self.step + 1,
                "supervised_tokens": self.supervised_tokens + supervised_tokens,
                "loss": loss,
            }
        )

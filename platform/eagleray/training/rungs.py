"""A training in rungs: looked at several times, given up when it is behind, continued after any kill.

Each rung is a stretch of the budget. It leaves the state to go on from and then its record, both written
atomically; a rung with a record is never trained again, one without is trained again from the rung before.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from eagleray.corpus.sample import Sample
from eagleray.drafters.base import TrainableDrafter
from eagleray.files import write_atomically, write_json_atomically
from eagleray.settings import Settings
from eagleray.training.budget import BudgetedTraining
from eagleray.training.config import TrainingConfig
from eagleray.training.features import FeatureSource
from eagleray.training.held_out import replay_tau


class RungRecord(Settings):
    """A rung's end, counted from the beginning of the training."""

    replay_tau: float
    cpu_s: float
    steps: int
    supervised_tokens: int
    loss: float


@dataclass(frozen=True, kw_only=True)
class RungJob:
    """A training and where it is kept."""

    drafter: TrainableDrafter
    """Fresh; `train_rung` gives it the weights of the rung."""
    samples: Sequence[Sample]
    held_out: Sequence[Sample]
    """Kept out of training, for replay tau."""
    source: FeatureSource
    config: TrainingConfig
    ends_s: tuple[float, ...]
    """CPU seconds at which each rung ends; the last is the whole budget."""
    folder: Path


def train_rung(job: RungJob, rung: int) -> RungRecord:
    """Train one rung, from 0, or return the record of an earlier attempt. The rung before must be there."""
    record, state = job.folder / f"rung_{rung}.json", job.folder / f"rung_{rung}.pt"
    training = BudgetedTraining(job.drafter, job.samples, job.source, job.config, job.ends_s[-1])
    if record.exists():
        training.load_state_dict(torch.load(state, weights_only=True))
        return RungRecord.model_validate_json(record.read_text(encoding="utf-8"))
    if rung:
        training.load_state_dict(torch.load(job.folder / f"rung_{rung - 1}.pt", weights_only=True))
    outcome = training.advance(job.ends_s[rung])
    found = RungRecord(
        replay_tau=replay_tau(job.drafter, job.held_out, job.source, job.config),
        cpu_s=outcome.cpu_s,
        steps=outcome.steps,
        supervised_tokens=outcome.supervised_tokens,
        loss=outcome.last_loss,
    )
    write_atomically(state, lambda aside: torch.save(training.state_dict(), aside))
    write_json_atomically(record, found.model_dump(mode="json"))
    if rung:
        (job.folder / f"rung_{rung - 1}.pt").unlink(missing_ok=True)
    return found

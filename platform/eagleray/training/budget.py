"""Training for a budget of CPU time instead of steps: what recipes and drafters are compared at.

One process, no cluster, the same step and optimiser as the training loop. The learning rate follows
the share of the budget that is spent, so that a dear step is not favoured by a longer schedule.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from eagleray.corpus.sample import Sample
from eagleray.drafters.base import TrainableDrafter
from eagleray.training.collate import collate
from eagleray.training.config import TrainingConfig
from eagleray.training.features import FeatureSource
from eagleray.training.optimizer import DrafterOptimizer
from eagleray.training.rows import TrainingRows
from eagleray.training.schedule import rate_factor
from eagleray.training.totals import add_up, normalise_gradients

GRAIN = 10_000
"""Parts of a budget that the schedule tells apart."""


@dataclass(frozen=True, kw_only=True)
class BudgetOutcome:
    """What a budget bought."""

    steps: int
    supervised_tokens: int
    cpu_s: float
    """CPU time of the steps alone: features are given, evaluation comes after."""
    passes: float
    """Times that the samples were seen."""
    last_loss: float


def train_on_budget(
    drafter: TrainableDrafter,
    samples: Sequence[Sample],
    source: FeatureSource,
    config: TrainingConfig,
    cpu_s: float,
) -> BudgetOutcome:
    """Train until `cpu_s` seconds of this process's CPU time are spent; see `BudgetedTraining`."""
    return BudgetedTraining(drafter, samples, source, config, cpu_s).advance(cpu_s)


class BudgetedTraining:
    """A training on a budget that can pause: between two stretches it may be looked at, stored or given up.

    The schedule is that of the whole budget, so pausing changes nothing that is learned.

    Args:
        config: `epochs` and `max_steps` do not count.
        cpu_s: The whole budget, in seconds of CPU time.

    Raises:
        ConfigError: There are fewer samples than one batch holds.
    """

    def __init__(
        self,
        drafter: TrainableDrafter,
        samples: Sequence[Sample],
        source: FeatureSource,
        config: TrainingConfig,
        cpu_s: float,
    ):
        self._drafter = drafter
        self._source = source
        self._config = config
        self._budget_s = cpu_s
        self._rows = TrainingRows(samples, config)
        self._plan = self._rows.plan()
        self._optimizer = DrafterOptimizer(drafter, config)
        self._step, self._tokens, self._spent_s, self._loss = 0, 0, 0.0, float("nan")

    def advance(self, until_s: float) -> BudgetOutcome:
        """Train until this much of the budget is spent; what is returned counts from the beginning."""
        began_s = time.process_time() - self._spent_s
        while self._spent_s < until_s:
            self._take_step()
            self._spent_s = time.process_time() - began_s
        return BudgetOutcome(
            steps=self._step,
            supervised_tokens=self._tokens,
            cpu_s=self._spent_s,
            passes=self._step / self._plan.steps_per_epoch,
            last_loss=self._loss,
        )

    def state_dict(self) -> dict[str, Any]:
        """Everything that going on from here needs, for `torch.save`."""
        return {
            "drafter": self._drafter.state_dict(),
            "optimizer": self._optimizer.state(),
            "counts": (self._step, self._tokens, self._spent_s, self._loss),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state of the same drafter, samples and settings."""
        self._drafter.load_state_dict(state["drafter"])
        self._optimizer.load_state(state["optimizer"])
        self._step, self._tokens, self._spent_s, self._loss = state["counts"]

    def _take_step(self) -> None:
        terms = []
        size, row_tokens = self._config.micro_batch_size, self._config.row_tokens
        shares = self._plan.micro_batches(
            self._step, rank=0, ranks=1, micro_batch_size=size, row_tokens=row_tokens
        )
        for share in shares:
            chosen = [self._rows[index] for index in share]
            seed = self._config.seed * 1_000_003 + self._step
            batch = collate(
                chosen, self._source, seed=seed, device=torch.device("cpu"), row_tokens=row_tokens
            )
            micro = self._drafter(batch)
            micro.loss_sum.backward()
            terms.append(micro)
            self._tokens += sum(row.supervised_tokens for row in chosen)
        totals = add_up(terms, 0, stop_requested=False)
        normalise_gradients(self._drafter, totals.weight_sum, self._config.grad_clip)
        spent = int(GRAIN * self._spent_s / self._budget_s)
        self._optimizer.step(rate_factor(spent, GRAIN, self._config))
        self._loss = totals.loss
        self._step += 1

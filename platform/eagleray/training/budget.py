"""Training for a budget of CPU time instead of steps: what recipes and drafters are compared at.

One process, no cluster, the same step and optimiser as the training loop. The learning rate follows
the share of the budget that is spent, so that a dear step is not favoured by a longer schedule.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from eagleray.corpus.sample import Sample
from eagleray.drafters.base import TrainableDrafter
from eagleray.training.batches import BatchPlan
from eagleray.training.collate import collate
from eagleray.training.config import TrainingConfig
from eagleray.training.features import FeatureSource
from eagleray.training.optimizer import DrafterOptimizer
from eagleray.training.rows import training_rows
from eagleray.training.schedule import cosine_with_warmup
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
    """Train until `cpu_s` seconds of this process's CPU time are spent.

    Args:
        config: `epochs` and `max_steps` do not count.

    Raises:
        ConfigError: There are fewer samples than one batch holds.
    """
    rows = training_rows(samples, config)
    plan = BatchPlan(
        [row.length for row in rows],
        config.global_batch_size,
        window_batches=config.length_window_batches,
        seed=config.seed,
    )
    optimizer = DrafterOptimizer(drafter, config)
    step, tokens, loss = 0, 0, float("nan")
    began_s = time.process_time()
    while (spent_s := time.process_time() - began_s) < cpu_s:
        terms = []
        for share in plan.micro_batches(step, rank=0, ranks=1, micro_batch_size=config.micro_batch_size):
            chosen = [rows[index] for index in share]
            seed = config.seed * 1_000_003 + step
            micro = drafter(collate(chosen, source, seed=seed, device=torch.device("cpu")))
            micro.loss_sum.backward()
            terms.append(micro)
            tokens += sum(row.supervised_tokens for row in chosen)
        totals = add_up(terms, 0, stop_requested=False)
        normalise_gradients(drafter, totals.weight_sum, config.grad_clip)
        optimizer.step(cosine_with_warmup(int(GRAIN * spent_s / cpu_s), GRAIN, config.warmup_ratio))
        loss = totals.loss
        step += 1
    return BudgetOutcome(
        steps=step,
        supervised_tokens=tokens,
        cpu_s=time.process_time() - began_s,
        passes=step / plan.steps_per_epoch,
        last_loss=loss,
    )

"""Which sequences make up which step, from the step number alone.

Nothing is remembered between steps, so a run that resumes at any step, with any number of ranks,
sees the same global batches as one that never stopped.
"""

import random
from collections.abc import Sequence

from eagleray.errors import ConfigError
from eagleray.training.layout import pack_micro_batches, split_into


class BatchPlan:
    """Global batches of every epoch and their split over ranks and micro-batches.

    The last incomplete batch of an epoch is left out, other sequences each time.

    Args:
        lengths: Length of each sequence; batches refer to sequences by their index here.
        window_batches: Sort by length within this many batches (1: within none but the batch itself).

    Raises:
        ConfigError: There are fewer sequences than one global batch holds.
    """

    def __init__(self, lengths: Sequence[int], global_batch_size: int, *, window_batches: int, seed: int):
        if len(lengths) < global_batch_size:
            raise ConfigError(
                f"training.global_batch_size is {global_batch_size}, but the dataset has {len(lengths)} "
                f"sequences. Distil more prompts, or set it to at most {len(lengths)}."
            )
        self._lengths = lengths
        self._batch_size = global_batch_size
        self._window = window_batches
        self._seed = seed
        self._epoch: tuple[int, list[list[int]]] | None = None
        self.steps_per_epoch = len(lengths) // global_batch_size
        self.left_out_per_epoch = len(lengths) % global_batch_size

    def total_steps(self, epochs: int, max_steps: int | None) -> int:
        """Optimiser steps of a whole run."""
        steps = epochs * self.steps_per_epoch
        return steps if max_steps is None else min(steps, max_steps)

    def global_batch(self, step: int) -> list[int]:
        """Sequences of a step, longest first."""
        epoch, position = divmod(step, self.steps_per_epoch)
        if self._epoch is None or self._epoch[0] != epoch:
            self._epoch = (epoch, self._order(epoch))
        return self._epoch[1][position]

    def micro_batches(
        self, step: int, *, rank: int, ranks: int, micro_batch_size: int, row_tokens: int | None = None
    ) -> list[list[int]]:
        """One rank's share of a step; all ranks get the same number of micro-batches.

        Args:
            micro_batch_size: Rows of each.
            row_tokens: Sequences are laid into rows of so many tokens. None: each has a row to itself.

        Raises:
            ConfigError: The ranks cannot share a global batch evenly.
        """
        if self._batch_size % ranks:
            raise ConfigError(
                f"training.global_batch_size {self._batch_size} is not a multiple of the {ranks} workers. "
                "Change training.workers or training.global_batch_size."
            )
        whole = self.global_batch(step)
        share = whole[rank::ranks]
        if row_tokens is None:
            return [
                share[start : start + micro_batch_size] for start in range(0, len(share), micro_batch_size)
            ]
        packed = [
            pack_micro_batches([self._lengths[i] for i in whole[each::ranks]], row_tokens, micro_batch_size)
            for each in range(ranks)
        ]
        cut = split_into(packed[rank], max(len(batches) for batches in packed))
        return [[share[place] for place in batch] for batch in cut]

    def _order(self, epoch: int) -> list[list[int]]:
        generator = random.Random(f"{self._seed}/{epoch}")
        order = list(range(len(self._lengths)))
        generator.shuffle(order)
        order = order[: self.steps_per_epoch * self._batch_size]
        batches: list[list[int]] = []
        window = self._window * self._batch_size
        for start in range(0, len(order), window):
            # Ties in length keep their shuffled order: sorting is stable.
            near = sorted(order[start : start + window], key=lambda index: -self._lengths[index])
            cut = [near[at : at + self._batch_size] for at in range(0, len(near), self._batch_size)]
            generator.shuffle(cut)
            batches.extend(cut)
        return batches

"""Telling a drafter what was committed: at once while it drafts, when it is asked to draft while it does not.

A cycle without a draft needs no drafter. What such cycles commit, and prompts that come meanwhile, are kept
row by row and told together before the next draft; of a row that ends before that the drafter never hears.
Shapes: Q positions of one row, L tapped layers, D target width; for the others see `drafters/base.py`.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from eagleray.drafters.base import Committed, DraftSession

MOST_HELD = 1024
"""Positions of a row that are kept untold at most; they hold features."""
LEAST_FILLED = 0.5
"""Rows are told together if the shortest fills so much of the longest: padding costs what positions do."""


class Piece(NamedTuple):
    """Neighbouring positions of one row."""

    features_QLD: Tensor
    final_QD: Tensor
    next_ids_Q: Tensor


class Observer:
    """The session of one running batch, and what it was not told yet."""

    def __init__(self, session: DraftSession):
        self._session = session
        self._held: dict[int, list[Piece]] = {}
        self._lengths: dict[int, int] = {}
        """Positions held of each row."""

    def tell(self, committed: Committed) -> None:
        """Tell at once, and before that what is held."""
        self.settle()
        self._session.observe(committed)

    def hold(self, committed: Committed) -> None:
        """Keep what was committed."""
        counts = committed.counts_B.tolist()
        for place, slot in enumerate(committed.rows_B.tolist()):
            # Copies: a row that stays long must not keep what its neighbours once were.
            piece = Piece(
                committed.features_BQLD[place, : counts[place]].clone(),
                committed.final_BQD[place, : counts[place]].clone(),
                committed.next_ids_BQ[place, : counts[place]].clone(),
            )
            self._held.setdefault(slot, []).append(piece)
            self._lengths[slot] = self._lengths.get(slot, 0) + counts[place]
        if max(self._lengths.values()) >= MOST_HELD:
            self.settle()

    def move(self, source: int, destination: int) -> None:
        """Hand what is known and held of one row to another."""
        self._session.move(source, destination)
        self._forget(destination)
        if source in self._held:
            self._held[destination] = self._held.pop(source)
            self._lengths[destination] = self._lengths.pop(source)

    def reset(self, slot: int) -> None:
        """Forget a row that has ended."""
        self._session.reset(slot)
        self._forget(slot)

    def settle(self) -> None:
        """Tell all that is held."""
        for slots in self._alike():
            features, final, next_ids = (
                pad_sequence([torch.cat(parts) for parts in of_rows], batch_first=True)
                for of_rows in zip(*(zip(*self._held[slot], strict=True) for slot in slots), strict=True)
            )
            self._session.observe(
                Committed(
                    rows_B=torch.tensor(slots, device=final.device),
                    features_BQLD=features,
                    final_BQD=final,
                    next_ids_BQ=next_ids,
                    counts_B=torch.tensor([self._lengths[slot] for slot in slots], device=final.device),
                )
            )
        self._held.clear()
        self._lengths.clear()

    def _forget(self, slot: int) -> None:
        self._held.pop(slot, None)
        self._lengths.pop(slot, None)

    def _alike(self) -> Iterator[list[int]]:
        """Slots in groups of about as many positions."""
        group: list[int] = []
        for slot in sorted(self._lengths, key=self._lengths.__getitem__):
            if group and self._lengths[group[0]] < LEAST_FILLED * self._lengths[slot]:
                yield group
                group = []
            group.append(slot)
        if group:
            yield group

"""Telling a drafter what was committed: at once while it drafts, when it is to draft again while it does not.

A cycle without a draft needs no drafter. What such cycles commit, and prompts that come meanwhile, are kept
and told together before the next draft; of a row that ends before that the drafter never hears.
Shapes: Q positions of one row, L tapped layers, D target width; for the others see `drafters/base.py`.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from eagleray.drafters.base import Committed, DraftSession

MOST_HELD = 8192
"""Positions of all rows that are kept untold at most; they hold features."""
LEAST_FILLED = 0.5
"""Rows are told together if the shortest fills so much of the longest: padding costs what positions do."""


class Piece(NamedTuple):
    """Neighbouring positions of one row."""

    features_QLD: Tensor
    final_QD: Tensor
    next_ids_Q: Tensor


class Held(NamedTuple):
    """What was committed together, and where its rows stand now."""

    slots: list[int | None]
    """None: the row has ended."""
    counts: list[int]
    committed: Committed

    def pieces(self) -> Iterator[tuple[int, Piece]]:
        """Of each row that is still there."""
        told = self.committed
        for place, (slot, count) in enumerate(zip(self.slots, self.counts, strict=True)):
            if slot is not None:
                yield (
                    slot,
                    Piece(
                        told.features_BQLD[place, :count],
                        told.final_BQD[place, :count],
                        told.next_ids_BQ[place, :count],
                    ),
                )


class Observer:
    """The session of one running batch, and what it was not told yet."""

    def __init__(self, session: DraftSession):
        self._session = session
        self._held: list[Held] = []

    def tell(self, committed: Committed) -> None:
        """Tell at once, and before that what is held."""
        self.settle()
        self._session.observe(committed)

    def hold(self, committed: Committed) -> None:
        """Keep what was committed."""
        self._held.append(Held(committed.rows_B.tolist(), committed.counts_B.tolist(), committed))
        if sum(held.committed.next_ids_BQ.numel() for held in self._held) >= MOST_HELD:
            self.settle()

    def move(self, source: int, destination: int) -> None:
        """Hand what is known and held of one row to another."""
        self._session.move(source, destination)
        self._rename(destination, None)
        self._rename(source, destination)

    def reset(self, slot: int) -> None:
        """Forget a row that has ended."""
        self._session.reset(slot)
        self._rename(slot, None)
        self._held = [held for held in self._held if any(one is not None for one in held.slots)]

    def settle(self) -> None:
        """Tell all that is held."""
        pieces: dict[int, list[Piece]] = {}
        for held in self._held:
            for slot, piece in held.pieces():
                pieces.setdefault(slot, []).append(piece)
        self._held = []
        rows = {slot: Piece(*map(torch.cat, zip(*parts, strict=True))) for slot, parts in pieces.items()}
        for slots in alike({slot: len(row.next_ids_Q) for slot, row in rows.items()}):
            self._session.observe(_together({slot: rows[slot] for slot in slots}))

    def _rename(self, slot: int, new: int | None) -> None:
        for held in self._held:
            if slot in held.slots:
                held.slots[held.slots.index(slot)] = new


def alike(lengths: Mapping[int, int]) -> Iterator[list[int]]:
    """Rows in groups of about the same length."""
    group: list[int] = []
    for slot in sorted(lengths, key=lengths.__getitem__):
        if group and lengths[group[0]] < LEAST_FILLED * lengths[slot]:
            yield group
            group = []
        group.append(slot)
    if group:
        yield group


def _together(rows: Mapping[int, Piece]) -> Committed:
    features, final, next_ids = (
        pad_sequence(list(of_rows), batch_first=True) for of_rows in zip(*rows.values(), strict=True)
    )
    counts = [len(row.next_ids_Q) for row in rows.values()]
    return Committed(
        rows_B=torch.tensor([*rows], device=final.device),
        features_BQLD=features,
        final_BQD=final,
        next_ids_BQ=next_ids,
        counts_B=torch.tensor(counts, device=final.device),
    )

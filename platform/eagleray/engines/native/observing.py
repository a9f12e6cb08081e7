"""Telling a drafter what was committed: at once while it drafts, in batches while it does not.

A cycle without a draft needs no drafter, and a drafter that reads one position after another pays for
each; so what plain cycles commit is kept and told together. Shapes: see `drafters/base.py`.
"""

import torch

from eagleray.drafters.base import Committed, DraftSession

MOST_HELD = 32
"""Positions of a row that are kept untold at most; they hold features."""


class Observer:
    """The session of one running batch, and what it was not told yet."""

    def __init__(self, session: DraftSession):
        self._session = session
        self._held: list[Committed] = []

    def tell(self, committed: Committed) -> None:
        """Tell at once, and before that what is held."""
        self.settle()
        self._session.observe(committed)

    def hold(self, committed: Committed) -> None:
        """Keep what a plain cycle committed, one position of each row."""
        if self._held and not torch.equal(self._held[0].rows_B, committed.rows_B):
            self.settle()
        self._held.append(committed)
        if len(self._held) == MOST_HELD:
            self.settle()

    def settle(self) -> None:
        """Tell what is held. Rows must not move before that."""
        if not self._held:
            return
        held, self._held = self._held, []
        self._session.observe(
            Committed(
                rows_B=held[0].rows_B,
                features_BQLD=torch.cat([one.features_BQLD for one in held], dim=1),
                final_BQD=torch.cat([one.final_BQD for one in held], dim=1),
                next_ids_BQ=torch.cat([one.next_ids_BQ for one in held], dim=1),
                counts_B=torch.full_like(held[0].counts_B, len(held)),
            )
        )

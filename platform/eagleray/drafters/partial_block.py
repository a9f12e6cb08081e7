"""A block that is run wider than it is offered: what serves a block drafter at less than its trained size.

Slots of a block see each other, so a block of 8 masked slots drafts other, and often better, first tokens
than a block of 4 does. How many slots are run and how many of them are verified are two settings.
"""

from torch import Tensor

from eagleray.drafters.base import Committed, DraftSession, DraftSource


class PartialBlock(DraftSource):
    """Another drafter, asked for `block_size - 1` tokens in every cycle; the first `depth` are offered.

    Args:
        block_size: Slots that are run, the anchor included.
    """

    def __init__(self, source: DraftSource, block_size: int):
        self._source = source
        self._slots = block_size - 1
        self.tapped_layers = source.tapped_layers
        self.max_depth = self._slots

    def open_session(self, max_rows: int, max_length: int) -> DraftSession:
        """A session of the other drafter."""
        return _PartialSession(self._source.open_session(max_rows, max_length + self._slots), self._slots)


class _PartialSession(DraftSession):
    def __init__(self, session: DraftSession, slots: int):
        self._session = session
        self._slots = slots

    def observe(self, committed: Committed) -> None:
        self._session.observe(committed)

    def draft(self, num_rows: int, depth: int) -> Tensor:
        return self._session.draft(num_rows, self._slots)[:, :depth]

    def reset(self, row: int) -> None:
        self._session.reset(row)

    def move(self, source: int, destination: int) -> None:
        self._session.move(source, destination)

"""Who stands where: the rows of a batch, and what the cache and the drafter hold of each.

Decoding rows stay in front, those whose prompts are still run stand behind them: when a row leaves, the last
ones move up, in the cache and in the drafter's session alike.
Shapes: B rows, Q positions of the longest, L tapped layers, D target width.
"""

from collections.abc import Sequence
from time import perf_counter

import torch
from torch import Tensor

from eagleray.drafters.base import Committed
from eagleray.engines.base import DraftSetting
from eagleray.engines.native.memory import CacheBudget
from eagleray.engines.native.observing import Observer
from eagleray.engines.native.rows import Row
from eagleray.engines.native.stopwatch import Stopwatch
from eagleray.engines.native.taps import Taps
from eagleray.targets.decoder import TargetDecoder


class Slots:
    """The rows that have a slot.

    Args:
        max_length: Longest prompt plus answer that may enter.
        budget: Bounds the cache; the caller lets no more rows in than it holds.
    """

    def __init__(
        self,
        decoder: TargetDecoder,
        draft: DraftSetting | None,
        capture_layers: tuple[int, ...] | None,
        max_rows: int,
        max_length: int,
        budget: CacheBudget,
        stopwatch: Stopwatch,
    ):
        self.rows: list[Row] = []
        """Those that decode."""
        self.entering: list[Row] = []
        """Those whose prompts have still to be run, in the slots behind."""
        self.budget = budget
        # Verification writes rejected drafts past the end of the longest sequence.
        room = max_length + budget.draft_room
        self.cache = decoder.new_cache(max_rows, room, budget.positions)
        self.session = draft.source.open_session(max_rows, room) if draft else None
        self.taps = Taps.join(draft.source.tapped_layers if draft else (), capture_layers)
        self._observer = Observer(self.session) if self.session else None
        self.adaptive = draft is not None and draft.adaptive
        """Whether the drafter may stay unused for long, so that it hears of prompts when it is to draft."""
        self._max_rows = max_rows
        self._stopwatch = stopwatch

    @property
    def free(self) -> int:
        """Rows that may still enter."""
        return self._max_rows - len(self.rows) - len(self.entering)

    def hold(self, row: Row) -> bool:
        """Whether there is a slot for one more row, and room for what it may grow to."""
        return self.free > 0 and self.budget.holds([*self.rows, *self.entering, row])

    def tell(
        self,
        first_slot: int,
        rows: Sequence[Row],
        counts: Sequence[int],
        features_BQLD: Tensor,
        final_BQD: Tensor,
        next_ids_BQ: Tensor,
        *,
        later: bool = False,
    ) -> None:
        """Hand what the target made of the newest positions to the rows in `first_slot`, ... that capture it,
        and to the drafter where they still run.

        Args:
            counts: Newest positions of each row; the rest is padding.
            next_ids_BQ: The token that follows each position.
            later: The drafter may be told when it is to draft again.
        """
        if self.taps.capture is not None:
            for row, features_QLD, final_QD, count in zip(
                rows, features_BQLD, final_BQD, counts, strict=True
            ):
                row.keep(features_QLD[:count, self.taps.capture], final_QD[:count])
        running = [place for place, row in enumerate(rows) if row.finish_reason is None]
        if self._observer is None or not running:
            return
        if len(running) < len(counts):
            features_BQLD, final_BQD, next_ids_BQ = (
                tensor[running] for tensor in (features_BQLD, final_BQD, next_ids_BQ)
            )
        device = final_BQD.device
        committed = Committed(
            rows_B=torch.tensor([first_slot + place for place in running], device=device),
            features_BQLD=features_BQLD[:, :, self.taps.drafter],
            final_BQD=final_BQD,
            next_ids_BQ=next_ids_BQ,
            counts_B=torch.tensor([counts[place] for place in running], device=device),
        )
        (self._observer.hold if later else self._observer.tell)(committed)

    @property
    def heard(self) -> bool:
        """Whether anybody is told."""
        return self._observer is not None or self.taps.capture is not None

    def settle(self) -> float:
        """Tell the drafter what it was not told yet. Returns the seconds that took."""
        if self._observer is None:
            return 0.0
        began_s = perf_counter()
        with self._stopwatch.phase("draft"):
            self._observer.settle()
        return perf_counter() - began_s

    def release(self) -> list[Row]:
        """Remove finished rows, free their slots and return them."""
        slots = [slot for slot, row in enumerate(self.rows) if row.finish_reason is not None]
        # From the back, so that the last row, which fills the gap, is one that stays.
        return [self._vacate(slot) for slot in reversed(slots)]

    def drop(self, request_id: str) -> None:
        """Remove the row of a request, if it has a slot."""
        for slot, row in enumerate([*self.rows, *self.entering]):
            if row.request.request_id == request_id:
                self._vacate(slot)
                return

    def _vacate(self, slot: int) -> Row:
        """Take the row out of a slot. The last decoding row moves there, and the last entering one behind
        those."""
        row = [*self.rows, *self.entering][slot]
        if slot < len(self.rows):
            self._move(len(self.rows) - 1, slot)
            self.rows[slot] = self.rows[-1]
            self.rows.pop()
            if self.entering:
                self._move(len(self.rows) + len(self.entering), len(self.rows))
                self.entering.insert(0, self.entering.pop())
        else:
            self._move(len(self.rows) + len(self.entering) - 1, slot)
            self.entering[slot - len(self.rows)] = self.entering[-1]
            self.entering.pop()
        last = len(self.rows) + len(self.entering)
        self.cache.reset(last)
        if self._observer is not None:
            self._observer.reset(last)
        return row

    def _move(self, source: int, destination: int) -> None:
        """Bring what is held of a slot to another one."""
        if source == destination:
            return
        self.cache.move(source, destination)
        if self._observer is not None:
            self._observer.move(source, destination)

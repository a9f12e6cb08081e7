"""Who enters the batch next, and how much of which prompt runs before the next cycle.

First come, first served: nobody is overtaken, so a long prompt waits for room but not for ever. While others
decode, prompts run in pieces between their cycles.
"""

from collections import deque

from eagleray.engines.native.config import NativeEngineConfig
from eagleray.engines.native.prompts import Prompts
from eagleray.engines.native.rows import Row
from eagleray.engines.native.slots import Slots
from eagleray.targets.attention import PROMPT_BLOCK


class Admission:
    """The queue of one stream."""

    def __init__(self, slots: Slots, prompts: Prompts, config: NativeEngineConfig):
        self._slots = slots
        self._prompts = prompts
        self._config = config
        self._waiting: deque[Row] = deque()

    def add(self, row: Row) -> None:
        """Put a row at the end of the queue.

        Raises:
            EngineError: It could never fit into the cache.
        """
        self._slots.budget.check(row)
        self._waiting.append(row)

    def drop(self, request_id: str) -> None:
        """Take a request out of the queue, if it waits."""
        self._waiting = deque(row for row in self._waiting if row.request.request_id != request_id)

    def next_counts(self) -> list[int]:
        """Let rows enter. Returns how many prompt tokens of each entering row run now; all but the last reach
        the end of their prompts.

        Prompts that run together read the target's weights once.
        """
        slots, kept, config = self._slots, self._prompts.kept, self._config
        left = config.prefill_tokens_per_cycle if slots.rows else config.max_prefill_tokens
        # Between two calls at most one row has entered whose prompt is not whole, as it used up its share.
        counts = [_share(row.prefilled, row.prompt_left, left) for row in slots.entering]
        while self._waiting and (not slots.entering or counts[-1] == slots.entering[-1].prompt_left):
            row = self._waiting[0]
            if not slots.hold(row) or kept.awaits(row, slots.entering):
                break
            start = kept.matched(row) * PROMPT_BLOCK
            count = _share(start, len(row.request.prompt_ids) - start, left - sum(counts))
            if not count:
                break
            self._prompts.enter(self._waiting.popleft())
            counts.append(count)
        return counts


def _share(start: int, remaining: int, left: int) -> int:
    """Tokens of a prompt that run now: all that remain, or up to the last whole block that fits."""
    return remaining if remaining <= left else max((start + left) // PROMPT_BLOCK * PROMPT_BLOCK - start, 0)

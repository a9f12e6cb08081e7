"""Who enters the batch next, and how much of which prompt runs before the next cycle.

First come, first served: nobody is overtaken, so a long prompt waits for room but not for ever. While others
decode, prompts run in pieces between their cycles.
"""

from collections import deque

from eagleray.engines.native.batch import RunningBatch
from eagleray.engines.native.config import NativeEngineConfig
from eagleray.engines.native.rows import Row
from eagleray.targets.attention import PROMPT_BLOCK


class Admission:
    """The queue of one stream."""

    def __init__(self, batch: RunningBatch, config: NativeEngineConfig):
        self._batch = batch
        self._config = config
        self._waiting: deque[Row] = deque()

    def add(self, row: Row) -> None:
        """Put a row at the end of the queue.

        Raises:
            EngineError: It could never fit into the cache.
        """
        self._batch.budget.check(row)
        self._waiting.append(row)

    def drop(self, request_id: str) -> None:
        """Take a request out of the queue, if it waits."""
        self._waiting = deque(row for row in self._waiting if row.request.request_id != request_id)

    def next_counts(self) -> list[int]:
        """Let rows enter. Returns how many prompt tokens of each entering row run now; all but the last reach
        the end of their prompts.

        Prompts that run together read the target's weights once.
        """
        batch, config = self._batch, self._config
        left = config.prefill_tokens_per_cycle if batch.rows else config.max_prefill_tokens
        # Between two calls at most one row has entered whose prompt is not whole, as it used up its share.
        counts = [_share(row.prefilled, row.prompt_left, left) for row in batch.entering]
        while self._waiting and (not batch.entering or counts[-1] == batch.entering[-1].prompt_left):
            row = self._waiting[0]
            if not batch.holds(row) or batch.prefixes.awaits(row, batch.entering):
                break
            start = batch.prefixes.matched(row) * PROMPT_BLOCK
            count = _share(start, len(row.request.prompt_ids) - start, left - sum(counts))
            if not count:
                break
            batch.enter(self._waiting.popleft())
            counts.append(count)
        return counts


def _share(start: int, remaining: int, left: int) -> int:
    """Tokens of a prompt that run now: all that remain, or up to the last whole block that fits."""
    return remaining if remaining <= left else max((start + left) // PROMPT_BLOCK * PROMPT_BLOCK - start, 0)

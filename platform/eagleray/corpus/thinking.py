"""How many of an answer's ids are thoughts: those up to the mark that ends them, and the space after it.

Found in ids, by asking from which id on the decoded text holds the mark. So it works for targets whose
mark is one token and for those that spell it in several.
"""

import bisect
from collections.abc import Callable, Sequence

THINKING_START = "<think>"
THINKING_END = "</think>"


def thinking_tokens(
    answer_ids: Sequence[int], request_text: str, decode: Callable[[Sequence[int]], str]
) -> int:
    """Count the leading ids that are thoughts: 0 when there are none, all when they never end.

    Args:
        request_text: What the target was asked; some templates open the thoughts themselves.
    """
    opened_by_request = request_text.rstrip().endswith(THINKING_START)
    if not opened_by_request and not decode(answer_ids).lstrip().startswith(THINKING_START):
        return 0

    def is_past_thoughts(count: int) -> bool:
        _, mark, after = decode(answer_ids[:count]).partition(THINKING_END)
        return bool(mark) and bool(after.strip())

    counts = range(len(answer_ids) + 1)
    return max(0, bisect.bisect_left(counts, True, key=is_past_thoughts) - 1) if counts else 0

"""What is trained on of a sample that is too long: its beginning, or all of it in windows.

A window is a run of positions that is trained on as one sequence. Every supervised token is learnt in one
window only; what stands before it there is context. The features of a window are those that the target has
in the whole sample, so they know of all that came before; only the drafter's own attention is cut.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

LongSamples = Literal["clip", "window"]

Spans = Sequence[tuple[int, int]]
"""Half-open index spans, ascending and apart."""

CONTEXT_SHARE = 4
"""A window after the first begins a quarter of its length before what it teaches."""


@dataclass(frozen=True, slots=True)
class Window:
    """Positions [start, end) of a sample."""

    start: int
    end: int
    supervised: tuple[tuple[int, int], ...]
    """What this window teaches, counted from the beginning of the sample."""

    @property
    def supervised_tokens(self) -> int:
        """Tokens that this window teaches."""
        return sum(end - start for start, end in self.supervised)

    @property
    def anchors(self) -> int:
        """Positions that a draft can start from: supervised tokens that a supervised token follows."""
        return sum(end - start - 1 for start, end in self.supervised)


def cut_windows(tokens: int, supervised: Spans, max_length: int, long_samples: LongSamples) -> list[Window]:
    """The windows of a sample; those without an anchor, from which nothing can be learnt, are left out.

    Args:
        tokens: Length of the sample.
        max_length: Longest window.
    """
    windows = [_window(0, min(tokens, max_length), 0, supervised)]
    if long_samples == "window" and tokens > max_length:
        windows = list(_cover(tokens, supervised, max_length))
    return [window for window in windows if window.anchors]


def _cover(tokens: int, supervised: Spans, max_length: int) -> list[Window]:
    windows: list[Window] = []
    context = max_length // CONTEXT_SHARE
    taught = 0
    while (first := _next_supervised(supervised, taught)) is not None:
        # The beginning of a sample is what every draft attends to: kept where there is room for it.
        start = 0 if first < max_length - context else first - context
        end = min(start + max_length, tokens)
        if any(low < end == high - 1 for low, high in supervised):
            # One token behind the window would have no anchor in the next: leave it the one before too.
            end -= 1
        windows.append(_window(start, end, taught, supervised))
        taught = end
    return windows


def _next_supervised(supervised: Spans, position: int) -> int | None:
    return next((max(start, position) for start, end in supervised if end > position), None)


def _window(start: int, end: int, taught: int, supervised: Spans) -> Window:
    spans = ((max(low, taught), min(high, end)) for low, high in supervised)
    return Window(start, end, tuple((low, high) for low, high in spans if low < high))

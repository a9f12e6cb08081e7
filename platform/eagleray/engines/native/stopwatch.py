"""Where the time of a stream goes."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Literal

from eagleray.engines.base import EngineTimes

Phase = Literal["prefill", "draft", "verify"]


class Stopwatch:
    """Adds up the seconds of each phase; what lies between phases while running is host work."""

    def __init__(self) -> None:
        self._running_s = 0.0
        self._spent_s: dict[Phase, float] = {"prefill": 0.0, "draft": 0.0, "verify": 0.0}

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the enclosed time as the engine's. The caller's own time between two calls is not."""
        entered = perf_counter()
        yield
        self._running_s += perf_counter() - entered

    @contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        """Count the enclosed time. Phases lie in running time and do not nest."""
        entered = perf_counter()
        yield
        self._spent_s[name] += perf_counter() - entered

    def times(self) -> EngineTimes:
        """The account so far."""
        spent = self._spent_s
        return EngineTimes(
            prefill_s=spent["prefill"],
            draft_s=spent["draft"],
            verify_s=spent["verify"],
            host_s=self._running_s - sum(spent.values()),
        )

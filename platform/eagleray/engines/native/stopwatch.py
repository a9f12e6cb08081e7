"""Where the time of a generation goes."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Literal

from eagleray.engines.base import EngineTimes

Phase = Literal["prefill", "draft", "verify"]


class Stopwatch:
    """Adds up the seconds of each phase; what lies between phases is host work."""

    def __init__(self) -> None:
        self._started = perf_counter()
        self._spent_s: dict[Phase, float] = {"prefill": 0.0, "draft": 0.0, "verify": 0.0}

    @contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        """Count the enclosed time. Phases do not nest."""
        entered = perf_counter()
        yield
        self._spent_s[name] += perf_counter() - entered

    def times(self) -> EngineTimes:
        """The account so far."""
        spent = self._spent_s
        host_s = perf_counter() - self._started - sum(spent.values())
        return EngineTimes(
            prefill_s=spent["prefill"], draft_s=spent["draft"], verify_s=spent["verify"], host_s=host_s
        )

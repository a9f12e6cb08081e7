"""Progress of long work, as plain values that any surface can show."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a stage has come."""

    stage: str
    done: float
    total: float
    unit: str
    elapsed_s: float
    """Since this attempt began; work found done from an earlier attempt is not in `rate`."""
    rate_per_s: float
    detail: str = ""

    @property
    def left_s(self) -> float | None:
        """Seconds to go at the present rate; None while there is no rate yet."""
        return (self.total - self.done) / self.rate_per_s if self.rate_per_s > 0 else None


ProgressListener = Callable[[Progress], None]


class ProgressMeter:
    """Counts a stage's work and tells a listener. `already_done` is work of earlier attempts."""

    def __init__(
        self, stage: str, total: float, unit: str, listener: ProgressListener, already_done: float = 0.0
    ):
        self.stage = stage
        self.total = total
        self.unit = unit
        self.done = already_done
        self._listener = listener
        self._start_s = time.monotonic()
        self._start_done = already_done
        self.tell()

    def advance(self, amount: float, detail: str = "") -> None:
        """Count `amount` more units as done."""
        self.reach(self.done + amount, detail)

    def reach(self, done: float, detail: str = "") -> None:
        """Set how many units are done in all."""
        self.done = done
        self.tell(detail)

    def tell(self, detail: str = "") -> None:
        """Report the present state."""
        elapsed_s = time.monotonic() - self._start_s
        self._listener(
            Progress(
                stage=self.stage,
                done=self.done,
                total=self.total,
                unit=self.unit,
                elapsed_s=elapsed_s,
                rate_per_s=(self.done - self._start_done) / elapsed_s if elapsed_s > 0 else 0.0,
                detail=detail,
            )
        )

"""One job under watch: keeps the last records, and says what is new and what is to be kept of it."""

from collections import deque
from collections.abc import Iterator, Sequence

from eagleray.watchdog.config import WatchdogConfig
from eagleray.watchdog.detector import watch
from eagleray.watchdog.frame import batch_of
from eagleray.watchdog.gauges import Reading, readings
from eagleray.watchdog.state import State
from eagleray.watchdog.telemetry import RankRecord
from eagleray.watchdog.verdicts import Kind, Verdict

KEPT_KINDS: tuple[Kind, ...] = ("data_starved", "collective_hang", "oom_hang", "dead_rank")
"""Verdicts of which an incident is written; the others are told."""
TAKEN_OVER = 0.5
"""Confidence in a hang that was not seen here."""


class Watcher:
    """Takes the records of one attempt, second by second, until a verdict ends it."""

    def __init__(self, ranks: int, config: WatchdogConfig):
        self._ranks = ranks
        self._config = config
        self._state: State | None = None
        self._seconds: deque[tuple[RankRecord, ...]] = deque(maxlen=round(config.keep_s / config.poll_s))
        self.ending: Verdict | None = None
        """The verdict that ended the attempt."""
        self._newest: Verdict | None = None

    def observe(self, records: Sequence[RankRecord]) -> tuple[Verdict, ...]:
        """Judge one second; returns what is new. Nothing is judged before every rank was heard of once."""
        if self.ending is not None or not records:
            return ()
        if self._state is None and len(records) < self._ranks:
            return ()
        self._seconds.append(tuple(records))
        self._state, verdicts = watch(self._state, records, ranks=self._ranks, config=self._config.detector)
        self.ending = next((verdict for verdict in verdicts if verdict.ends_attempt), None)
        self._newest = verdicts[-1] if verdicts else self._newest
        return verdicts

    def take_over(self, evidence: str) -> Verdict | None:
        """A hang for which another layer has ended the attempt, with what was known of it here.

        None when the attempt was ended here, or every rank had not been heard of.
        """
        if self.ending is not None or not self._seconds:
            return None
        known = self._newest if self._newest is not None and self._newest.kind in KEPT_KINDS else None
        self.ending = Verdict(
            kind="collective_hang" if known is None else known.kind,
            time_s=self._seconds[-1][0].time_s,
            culprit=None if known is None else known.culprit,
            confidence=TAKEN_OVER if known is None else known.confidence,
            ends_attempt=True,
            stalled_s=0.0 if known is None else known.stalled_s,
            evidence=(evidence, *(() if known is None else known.evidence)),
        )
        return self.ending

    @property
    def seconds(self) -> tuple[tuple[RankRecord, ...], ...]:
        """The last records, oldest first."""
        return tuple(self._seconds)

    def readings(self) -> Iterator[Reading]:
        """Gauges of the newest second."""
        if self._state is not None:
            yield from readings(self._state, batch_of(self._seconds[-1], self._ranks))

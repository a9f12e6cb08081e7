"""Small jobs told second by second, for tests of the detector."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from eagleray.watchdog.config import DetectorConfig
from eagleray.watchdog.detector import watch
from eagleray.watchdog.state import State
from eagleray.watchdog.telemetry import RankRecord
from eagleray.watchdog.verdicts import Verdict

STEP_S = 1.0


@dataclass
class Story:
    """A job of a few ranks that steps once a second, until something else is told of it."""

    ranks: int = 4
    config: DetectorConfig = field(default_factory=DetectorConfig)
    time_s: float = 1000.0
    step: int = 0
    state: State | None = None
    verdicts: list[Verdict] = field(default_factory=list)
    last: list[RankRecord] = field(default_factory=list)
    told: list[list[RankRecord]] = field(default_factory=list)
    """What the detector was given, second by second."""

    def run(self, seconds: int, changes: Mapping[int, Mapping[str, Any]] | None = None) -> None:
        """The job steps; `changes` are laid over the records of some ranks."""
        for _ in range(seconds):
            self.time_s += STEP_S
            self.step += 1
            self.last = [self._record(rank) for rank in range(self.ranks)]
            self._watch(self._changed(changes))

    def stand(self, seconds: int, changes: Mapping[int, Mapping[str, Any]] | None = None) -> None:
        """Nobody moves: every rank repeats its last word, with `changes` laid over it."""
        for _ in range(seconds):
            self.time_s += STEP_S
            self.last = [replace(record, time_s=record.time_s + STEP_S) for record in self.last]
            self._watch(self._changed(changes))

    def freeze(self, rank: int, phase: str = "forward", **fields: Any) -> dict[int, dict[str, Any]]:
        """Changes that leave `rank` in a phase of this step, and the others in the exchange before it."""
        entered = self.step
        now: dict[int, dict[str, Any]] = {
            other: {"phase": "collective", "collectives_entered": entered + 1, "power_w": 90.0}
            for other in range(self.ranks)
        }
        now[rank] = {
            "phase": phase,
            "collectives_entered": entered,
            "power_w": 80.0,
            "utilisation_ratio": 0.0,
        }
        now[rank] |= fields
        return now

    def kinds(self) -> list[tuple[str, int | None, bool]]:
        """What was told so far."""
        return [(verdict.kind, verdict.culprit, verdict.ends_attempt) for verdict in self.verdicts]

    def _record(self, rank: int) -> RankRecord:
        # Machines' clocks have nothing to do with each other.
        time_s = self.time_s + 1e5 * rank
        return RankRecord(
            rank=rank,
            time_s=time_s,
            step=self.step,
            phase="collective",
            beat_time_s=time_s - 0.2,
            optimizer_step_time_s=time_s - 0.5,
            collectives_entered=self.step,
            waited_s=0.2 * self.step,
            data_s=0.05 * self.step,
            oom_count=0,
            alloc_retry_count=0,
            finished=False,
            process_alive=True,
            process_stopped=False,
            host_rss_bytes=4 << 30,
            device_used_bytes=60 << 30,
            device_total_bytes=80 << 30,
            utilisation_ratio=1.0,
            power_w=600.0,
        )

    def _changed(self, changes: Mapping[int, Mapping[str, Any]] | None) -> Iterator[RankRecord]:
        for record in self.last:
            yield replace(record, **(changes or {}).get(record.rank, {}))

    def _watch(self, records: Iterator[RankRecord]) -> None:
        self.told.append(list(records))
        self.state, verdicts = watch(self.state, self.told[-1], ranks=self.ranks, config=self.config)
        self.verdicts += verdicts


def missing(*names: str) -> dict[str, None]:
    """Changes that make fields missing."""
    return dict.fromkeys(names)


HEARTBEAT = missing(
    "step",
    "phase",
    "beat_time_s",
    "optimizer_step_time_s",
    "collectives_entered",
    "waited_s",
    "data_s",
    "oom_count",
    "alloc_retry_count",
    "finished",
)
DEVICE = missing("device_used_bytes", "device_total_bytes", "utilisation_ratio", "power_w")

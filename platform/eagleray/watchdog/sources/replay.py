"""Records from a file or a list, in the order in which they were taken."""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from eagleray.errors import DataError
from eagleray.files import write_text_atomically
from eagleray.watchdog.telemetry import RankRecord


class ReplaySource:
    """Gives the recorded seconds one after another, then nothing."""

    def __init__(self, seconds: Iterable[Sequence[RankRecord]]):
        self._seconds: Iterator[Sequence[RankRecord]] = iter(seconds)

    def read(self, time_s: float) -> Sequence[RankRecord]:
        """The next second's records, with the times they were recorded at."""
        return next(self._seconds, ())


def write_trace(path: Path, seconds: Iterable[Sequence[RankRecord]]) -> None:
    """Write one line of JSON per second; missing values are left out."""
    lines = [json.dumps([_known_fields(record) for record in records]) for records in seconds]
    write_text_atomically(path, "".join(f"{line}\n" for line in lines))


def read_trace(path: Path) -> list[tuple[RankRecord, ...]]:
    """Read what `write_trace` wrote.

    Raises:
        DataError: A line is not a list of records.
    """
    seconds = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            seconds.append(tuple(RankRecord(**record) for record in json.loads(line)))
        except (ValueError, TypeError) as error:
            raise DataError(
                f"{path}, line {number} is not a list of telemetry records: {error}. Record it again."
            ) from None
    return seconds


def _known_fields(record: RankRecord) -> dict[str, object]:
    return {name: value for name, value in dataclasses.asdict(record).items() if value is not None}

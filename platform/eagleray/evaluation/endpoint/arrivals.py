"""When requests came, from a log of them: real traffic comes in bursts that Poisson arrivals do not have."""

from datetime import datetime
from itertools import pairwise
from typing import Any

from eagleray.corpus.inputs.base import BadRow, Row
from eagleray.corpus.inputs.catalog import container_of
from eagleray.corpus.inputs.opening import container_suffix, expand, open_rows
from eagleray.errors import DataError

TIME_KEYS = ("arrived_s", "timestamp", "created", "created_at", "time")
"""Keys of a row under which its time may lie, the first one that is there: that of our own captures, then
what serving logs call it."""


def read_gaps_s(path: str) -> tuple[float, ...]:
    """Seconds between the requests of a log, in the order in which they came.

    Args:
        path: A file or glob, as for prompts.

    Raises:
        DataError: A row has no time, or there are fewer than two.
    """
    times = sorted(_time_s(row, f"{file}:{number}") for file in expand(path) for number, row in _rows(file))
    if len(times) < 2:
        raise DataError(f"{path} has {len(times)} rows; arrivals to replay need at least two.")
    return tuple(later - earlier for earlier, later in pairwise(times))


def _rows(file: str) -> list[tuple[int, Row | BadRow]]:
    container = container_of(container_suffix(file), file)
    with open_rows(file, seekable=container.seekable) as (stream, _):
        return list(container.rows(stream))


def _time_s(row: Row | BadRow, origin: str) -> float:
    """Unix time of a row: a number of seconds, or text in ISO 8601."""
    value: Any = None if isinstance(row, BadRow) else next((row[k] for k in TIME_KEYS if k in row), None)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, str):
        try:
            return datetime.fromisoformat(value).timestamp()
        except ValueError:
            pass
    raise DataError(
        f"{origin} does not say when the request came: expected a Unix time in seconds or ISO 8601 under one "
        f"of {', '.join(TIME_KEYS)}, found {value!r}."
    )

"""Waits before a retry, without waiting."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from eagleray.engines.openai.backoff import retry_after_s, retry_wait_s
from eagleray.engines.openai.config import OpenAIEngineConfig

CONFIG = OpenAIEngineConfig(url="http://h", first_retry_wait_s=1.0, longest_retry_wait_s=60.0)


@pytest.mark.parametrize(("retry", "longest"), [(0, 1.0), (1, 2.0), (3, 8.0), (5, 32.0)])
def test_each_wait_is_twice_as_long_less_a_random_part(retry: int, longest: float) -> None:
    waits = {retry_wait_s(CONFIG, retry, 0.0) for _ in range(100)}
    assert all(longest / 2 <= wait <= longest for wait in waits)
    assert len(waits) > 1


@pytest.mark.parametrize(("asked", "expected"), [(20.0, 20.0), (3600.0, 60.0), (float("inf"), 60.0)])
def test_the_server_is_waited_for_as_long_as_it_asks_within_the_longest_wait(
    asked: float, expected: float
) -> None:
    assert retry_wait_s(CONFIG, 0, asked) == expected


def test_no_wait_is_longer_than_the_longest() -> None:
    assert retry_wait_s(CONFIG, 40, 0.0) == 60.0


def test_retry_after_is_read_as_a_number_or_a_date() -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(minutes=5), usegmt=True)
    past = format_datetime(datetime.now(UTC) - timedelta(minutes=5), usegmt=True)
    assert 290 < retry_after_s(soon) <= 300
    assert [retry_after_s(header) for header in ("7", "1.5", "-3", past, "soon", "", None)] == [
        *(7.0, 1.5, 0.0, 0.0, 0.0, 0.0, 0.0)
    ]

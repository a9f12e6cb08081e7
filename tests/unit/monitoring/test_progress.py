import psutil
import pytest

from eagleray.monitoring.memory import peak_rss_bytes
from eagleray.monitoring.progress import Progress, ProgressMeter


def test_rate_counts_only_this_attempt() -> None:
    seen: list[Progress] = []
    meter = ProgressMeter("distil", 100, "prompts", seen.append, already_done=60)
    meter.advance(20)
    assert (seen[0].done, seen[0].rate_per_s) == (60, 0.0)
    last = seen[-1]
    assert last.done == 80
    assert last.rate_per_s * last.elapsed_s == pytest.approx(20)
    assert last.left_s is not None
    assert last.left_s == pytest.approx(last.elapsed_s)


def test_time_left_is_unknown_before_any_work() -> None:
    seen: list[Progress] = []
    ProgressMeter("x", 5, "steps", seen.append)
    assert seen[0].left_s is None


def test_peak_memory_never_falls() -> None:
    before = peak_rss_bytes()
    # Tests before this one may have needed more than is resident now.
    ballast = bytearray(before - psutil.Process().memory_info().rss + (64 << 20))
    ballast[::4096] = b"x" * len(ballast[::4096])
    grown = peak_rss_bytes()
    del ballast
    assert grown - before > 32 << 20
    assert peak_rss_bytes() >= grown - (4 << 20), "the kernel folds per-thread counts in lazily"

"""Figures of the watchdog's bench from hand-made outcomes, and parts that are kept."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from eagleray.watchdog.simulator.scoring import FailingTrace, HealthyScore
from jobs.bench_watchdog import Parts, figures, overhead_figures, proportion, real_figures
from jobs.real_faults import CULPRIT, RIGHT_VERDICT


def trace(
    detected_after_s: float | None, *, right_culprit: bool = True, before: bool = False
) -> FailingTrace:
    return FailingTrace(
        fault="dead_rank",
        ranks=2,
        step_s=1.0,
        early=False,
        detected_after_s=detected_after_s,
        right_culprit=right_culprit,
        ended_after_s=detected_after_s,
        ended_before=before,
    )


def test_a_fault_that_was_missed_counts_as_found_at_the_end_of_its_trace() -> None:
    traces = [trace(10.0), trace(20.0), trace(30.0, right_culprit=False), trace(None, right_culprit=False)]
    scores = [HealthyScore(hours=100.0, ended=1, ended_for=("oom_hang",), warnings=Counter(straggler=5))]
    found = figures([*traces, trace(40.0, before=True)], scores)
    assert found["recall_ratio"].value == 0.8
    assert found["culprit_ratio"].value == 0.6
    assert found["detection_median_s"].value == 30.0
    assert found["detection_p95_s"].value == 600.0
    assert found["false_alarms"].value == 2
    assert found["healthy_warnings_per_hour"].value == 0.05


def told(kind: str, after_s: float, *, ends: bool = True) -> dict[str, Any]:
    return {"kind": kind, "culprit": CULPRIT, "ends_attempt": ends, "after_s": after_s}


def test_a_real_fault_is_right_only_from_its_first_word_to_its_last() -> None:
    real = {
        fault: {"told": [told(kind, 15.0, ends=False), told(kind, 26.0)], "nothing_lost": True}
        for fault, kind in RIGHT_VERDICT.items()
    }
    assert real_figures(real)["real_fault_right_ratio"].value == 1.0
    assert real_figures(real)["real_fault_max_detection_s"].value == 26.0
    real["die"]["told"] = [told("collective_hang", 15.0, ends=False)]
    assert real_figures(real)["real_fault_right_ratio"].value == 0.8
    assert real_figures(real)["real_fault_max_detection_s"].value == math.inf


def test_overhead_is_what_a_watched_block_takes_beyond_its_neighbour() -> None:
    found = overhead_figures(
        {"passed": [[1.02, 1.0], [2.02, 2.0], [5.0, 1.0]], "processor": [[1.0, 1.0], [1.0, 1.0], [1.0, 2.0]]}
    )
    assert found["overhead_ratio"].value == pytest.approx(0.02)
    assert found["overhead_processor_ratio"].value == 0.0


def test_a_share_of_all_still_has_an_interval() -> None:
    figure = proportion([True] * 100)
    assert figure.value == pytest.approx(figure.high) == 1.0
    assert figure.low == pytest.approx(100 / (100 + 1.96**2))


def test_a_part_is_kept_while_code_and_settings_stay(tmp_path: Path) -> None:
    calls: list[int] = []

    def measure() -> list[int]:
        calls.append(1)
        return [len(calls)]

    assert Parts(tmp_path, "a").get("part", 1, measure) == [1]
    assert Parts(tmp_path, "a").get("part", 1, measure) == [1]
    assert Parts(tmp_path, "a").get("part", 2, measure) == [2]
    assert Parts(tmp_path, "b").get("part", 2, measure) == [3]

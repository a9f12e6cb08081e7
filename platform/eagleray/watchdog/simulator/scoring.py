"""How well the detector does on simulated jobs. Legend: `_J` jobs."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eagleray.watchdog.config import DetectorConfig
from eagleray.watchdog.detector import CODE, advance
from eagleray.watchdog.simulator.faults import FAULTS, OOM_PHASES, RIGHT_VERDICT, draw_faults
from eagleray.watchdog.simulator.fleet import Fleet
from eagleray.watchdog.simulator.jobs import draw_jobs
from eagleray.watchdog.simulator.ranges import Range, Ranges
from eagleray.watchdog.state import NOBODY, initial_state
from eagleray.watchdog.verdicts import KINDS

AFTER_FAULT_S = 600.0
FAULT_WITHIN_S = (200.0, 1800.0)
"""Seconds after the start; the earliest hit jobs that still compile and know nothing of their own pace."""
LONGEST_PAUSE_S = 1800.0
"""A fault waits for the end of the step it would hit; one that a pause puts off for longer is left out."""


@dataclass(frozen=True, kw_only=True)
class FailingTrace:
    """What came of one fault."""

    fault: str
    """Of `FAULTS`; an OOM hang with the phase it hit, as in `oom_hang/evaluate`."""
    ranks: int
    step_s: float
    early: bool
    """The fault hit one of the first steps."""
    detected_after_s: float | None
    """Until the first verdict of the right kind; None: never."""
    right_culprit: bool
    """Of that verdict."""
    ended_after_s: float | None
    """Until the attempt was to be ended, for whatever reason; None: not within the trace."""
    ended_before: bool
    """A verdict ended the healthy job before the fault."""


@dataclass(frozen=True, kw_only=True)
class HealthyScore:
    """What came of healthy jobs."""

    hours: float
    ended: int
    """Verdicts that would have ended a run: false alarms."""
    ended_for: tuple[str, ...]
    warnings: Counter[str]
    """Kind -> verdicts that did not end a run, whether they were wrong or told of a real pause."""


def run_failing(
    seed: int,
    ranges: Ranges,
    ranks: int,
    count: int,
    config: DetectorConfig,
    within_s: Range = FAULT_WITHIN_S,
) -> list[FailingTrace]:
    """Let `count` jobs fail, every sort of fault equally often."""
    rng = np.random.default_rng([seed, ranks, 1])
    jobs = draw_jobs(rng, ranges, count, ranks)
    plan = draw_faults(
        rng,
        np.arange(count) % len(FAULTS),
        ranks,
        earliest_s=within_s,
        ramp_s=ranges.oom_ramp_s,
        invisible=ranges.oom_invisible,
    )
    fleet = Fleet(jobs, plan, ranges, rng)
    right_J = np.array([CODE[RIGHT_VERDICT[FAULTS[fault]]] for fault in plan.fault_J])
    linked_J = (plan.fault_J == FAULTS.index("equal_hang")) & ~plan.odd_one_J
    culprit_J = np.where(linked_J, NOBODY, plan.culprit_J)
    detected_s_J, ended_s_J = np.full(count, np.nan), np.full(count, np.nan)
    named_J, before_J = np.full(count, NOBODY), np.zeros(count, dtype=bool)
    learned_J = np.zeros(count)
    frame = fleet.tick()
    state = initial_state(frame)
    longest_s = within_s[1] + LONGEST_PAUSE_S + AFTER_FAULT_S
    while float(frame.time_s[0]) < min(fleet.fault_at_s_J.max() + AFTER_FAULT_S, longest_s):
        frame = fleet.tick()
        state, judgement = advance(state, frame, config)
        failed_J = frame.time_s >= fleet.fault_at_s_J
        learned_J = np.where(failed_J, learned_J, state.learned_J)
        before_J |= judgement.ends_J & ~failed_J
        # Once ended, an attempt is over: what the detector would say later counts no more.
        open_J = failed_J & (np.isnan(ended_s_J))
        right_now_J = open_J & np.isnan(detected_s_J) & (judgement.kind_J == right_J)
        detected_s_J[right_now_J] = frame.time_s[right_now_J]
        named_J[right_now_J] = judgement.culprit_J[right_now_J]
        ending_J = open_J & judgement.ends_J
        ended_s_J[ending_J] = frame.time_s[ending_J]
    begun_J = np.isfinite(fleet.fault_at_s_J)
    return [
        FailingTrace(
            fault=_name(int(plan.fault_J[job]), int(plan.oom_phase_J[job])),
            ranks=ranks,
            step_s=float(jobs.work_s_J[job] + jobs.comm_s_J[job] + jobs.optimizer_s_J[job]),
            early=bool(learned_J[job] < config.first_steps),
            detected_after_s=_since(detected_s_J[job], fleet.fault_at_s_J[job]),
            right_culprit=bool(named_J[job] == culprit_J[job]) and not np.isnan(detected_s_J[job]),
            ended_after_s=_since(ended_s_J[job], fleet.fault_at_s_J[job]),
            ended_before=bool(before_J[job]),
        )
        for job in np.flatnonzero(begun_J)
    ]


def run_healthy(
    seed: int, ranges: Ranges, ranks: int, count: int, hours_each: float, config: DetectorConfig
) -> HealthyScore:
    """Let `count` jobs run in which nothing goes wrong for good."""
    rng = np.random.default_rng([seed, ranks, 2])
    fleet = Fleet.healthy(rng, ranges, count, ranks)
    frame = fleet.tick()
    state = initial_state(frame)
    warnings: Counter[str] = Counter()
    ended: list[str] = []
    for _ in range(int(hours_each * 3600)):
        frame = fleet.tick()
        ended_before_J = state.ends_J
        state, judgement = advance(state, frame, config)
        for job in np.flatnonzero(judgement.news_J & (judgement.kind_J > 0)):
            kind = KINDS[judgement.kind_J[job]]
            if not judgement.ends_J[job]:
                warnings[kind] += 1
            elif not ended_before_J[job]:
                ended.append(kind)
    return HealthyScore(
        hours=count * int(hours_each * 3600) / 3600,
        ended=len(ended),
        ended_for=tuple(ended),
        warnings=warnings,
    )


def quantile(values: Sequence[float], share: float) -> float:
    """Nearest-rank quantile; infinite values are the largest."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, int(np.ceil(share * len(ordered))) - 1))]


def _name(fault: int, oom_phase: int) -> str:
    return f"oom_hang/{OOM_PHASES[oom_phase]}" if FAULTS[fault] == "oom_hang" else FAULTS[fault]


def _since(time_s: float, fault_at_s: float) -> float | None:
    return None if np.isnan(time_s) else float(time_s - fault_at_s)

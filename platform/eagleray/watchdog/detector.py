"""The detector: `(state, records) -> (state, verdicts)`, without a clock of its own.

`watch` takes one job's records of one second. `advance` is the same for a batch of jobs of one size, which is
how ten thousand simulated hours are looked at in minutes. A verdict is told when it changes: when a trouble
begins, when it becomes a reason to end the attempt, when its culprit is found, and when the job is healthy
again. Legend: `_J` jobs; `_JR` jobs by ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from eagleray.watchdog.config import DetectorConfig
from eagleray.watchdog.evidence import describe
from eagleray.watchdog.frame import Bools, Floats, Frame, Ints, any_rank, batch_of
from eagleray.watchdog.learning import excused, hear, learn, stall_s
from eagleray.watchdog.rules.hang import find_collective_hang, find_data_block, find_oom_hang
from eagleray.watchdog.rules.pace import EVERYBODY, compare_pace, slow
from eagleray.watchdog.state import NOBODY, State, initial_state
from eagleray.watchdog.telemetry import RankRecord
from eagleray.watchdog.verdicts import KINDS, Kind, Verdict
from eagleray.watchdog.view import HEARING_S, Finding, single, view_of

CODE: dict[Kind, int] = {kind: code for code, kind in enumerate(KINDS)}
STANDING_RULES = (
    ("data_starved", find_data_block),
    ("collective_hang", find_collective_hang),
    ("oom_hang", find_oom_hang),
)
CERTAIN = 0.99
MISSED_S = 1e6
"""A look that missed a process outweighs any difference in how long ranks have been silent."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Judgement:
    """What is so in each job of a batch, whether or not it was told before."""

    kind_J: Ints
    culprit_J: Ints
    ends_J: Bools
    confidence_J: Floats
    stall_s_J: Floats
    news_J: Bools
    """It differs from what was told last."""


def watch(
    state: State | None, records: Sequence[RankRecord], *, ranks: int, config: DetectorConfig
) -> tuple[State, tuple[Verdict, ...]]:
    """Judge one second of one job.

    Args:
        state: What the last call returned; None at first.
        records: At most one per rank; a rank that is left out is missing in this second.

    Raises:
        DataError: There is no record, or one of a rank outside 0..ranks-1.
    """
    frame = batch_of(records, ranks)
    before = initial_state(frame) if state is None else state
    after, judgement = advance(before, frame, config)
    if not judgement.news_J[0]:
        return after, ()
    return after, (verdict_of(after, frame, judgement, 0),)


def advance(state: State, frame: Frame, config: DetectorConfig) -> tuple[State, Judgement]:
    """Judge one second of every job of a batch."""
    watched_s_J = np.minimum(frame.time_s - state.time_s_J, HEARING_S)
    state = hear(state, frame, watched_s_J)
    stall_s_J = stall_s(state, HEARING_S)
    excused_J = excused(state, config)
    limit_s_J = np.maximum(config.warn_after_s, config.warn_quiet_factor * state.usual_quiet_s_J)
    state = learn(state, frame, stall_s_J, excused_J, watched_s_J, limit_s_J)
    state = compare_pace(state, frame, config)
    judgement = _judge(state, frame, stall_s_J, excused_J, config)
    told = replace(state, kind_J=judgement.kind_J, culprit_J=judgement.culprit_J, ends_J=judgement.ends_J)
    return told, judgement


def verdict_of(state: State, frame: Frame, judgement: Judgement, job: int) -> Verdict:
    """One job's judgement in words."""
    culprit = int(judgement.culprit_J[job])
    kind = KINDS[judgement.kind_J[job]]
    return Verdict(
        kind=kind,
        time_s=float(frame.time_s[job]),
        culprit=None if culprit < 0 else culprit,
        confidence=float(judgement.confidence_J[job]),
        ends_attempt=bool(judgement.ends_J[job]),
        stalled_s=float(judgement.stall_s_J[job]),
        evidence=describe(kind, state, frame, judgement.stall_s_J, job, culprit),
    )


def _judge(
    state: State, frame: Frame, stall_s_J: Floats, excused_J: Bools, config: DetectorConfig
) -> Judgement:
    kind_J, culprit_J = np.zeros_like(state.kind_J), np.full_like(state.culprit_J, NOBODY)
    ends_J, confidence_J = np.zeros_like(state.ends_J), np.full(len(kind_J), CERTAIN)

    def put(rows: Ints, kind: Kind, finding: Finding) -> None:
        found = rows[finding.found_J]
        kind_J[found] = CODE[kind]
        culprit_J[found] = finding.culprit_J[finding.found_J]
        ends_J[found] = finding.ends_J[finding.found_J]
        confidence_J[found] = finding.confidence_J[finding.found_J]

    everyone = np.arange(len(kind_J))
    slow_J = slow(state, config)
    put(everyone, "straggler", _pace_finding(state, slow_J & ~state.slow_in_data_J))
    put(everyone, "telemetry_lost", _lost_telemetry(state, config))
    put(everyone, "data_starved", _pace_finding(state, slow_J & state.slow_in_data_J))
    soonest_s = min(config.warn_after_s, config.oom_warn_after_s)
    failed_J = (state.oom_count_JR > state.oom_count_before_beat_JR).any(axis=1)
    rows = np.flatnonzero((stall_s_J > soonest_s) & ~excused_J | failed_J)
    if len(rows):
        view = view_of(state, frame, stall_s_J, excused_J, rows)
        for kind, rule in STANDING_RULES:
            put(rows, kind, rule(view, config))  # type: ignore[arg-type]
    put(
        everyone,
        "collective_hang",
        _turning_in_circles(state, ~excused_J & (kind_J < CODE["data_starved"]), config),
    )
    put(everyone, "dead_rank", _dead_ranks(state, config))
    news_J = (kind_J != state.kind_J) | (culprit_J != state.culprit_J) | (ends_J != state.ends_J)
    return Judgement(
        kind_J=kind_J,
        culprit_J=culprit_J,
        ends_J=ends_J,
        confidence_J=confidence_J,
        stall_s_J=stall_s_J,
        news_J=news_J,
    )


def _pace_finding(state: State, found_J: Bools) -> Finding:
    return Finding(
        found_J=found_J,
        culprit_J=np.where(state.slow_rank_J == EVERYBODY, NOBODY, state.slow_rank_J),
        ends_J=np.zeros_like(found_J),
        confidence_J=np.full(len(found_J), 0.8),
    )


def _lost_telemetry(state: State, config: DetectorConfig) -> Finding:
    """Ranks, or devices that told of themselves before, of which nothing is known."""
    since_s_JR = state.time_s_J[:, None] - np.fmin(state.heard_s_JR, state.device_heard_s_JR)
    lost_JR = (since_s_JR > config.lost_after_s) & ~state.finished_JR
    return Finding(
        found_J=any_rank(lost_JR),
        culprit_J=single(lost_JR, lost_JR.astype(float)),
        ends_J=np.zeros(len(lost_JR), dtype=bool),
        confidence_J=np.full(len(lost_JR), CERTAIN),
    )


def _turning_in_circles(state: State, unexplained_J: Bools, config: DetectorConfig) -> Finding:
    """Signs of life, but no step."""
    limit_s_J = np.maximum(config.no_step_s, config.no_step_factor * state.longest_step_s_J)
    new_J = state.learned_J < config.first_steps
    limit_s_J = np.where(new_J, np.maximum(limit_s_J, config.first_end_after_s), limit_s_J)
    deaf_J = (state.time_s_J[:, None] - state.heard_s_JR > HEARING_S).any(axis=1)
    found_J = (state.unexcused_s_J > limit_s_J) & ~deaf_J & ~state.finished_JR.any(axis=1)
    found_J &= unexplained_J
    return Finding(
        found_J=found_J,
        culprit_J=single(np.ones_like(state.finished_JR), -state.collectives_JR),
        ends_J=found_J,
        confidence_J=np.full(len(found_J), 0.7),
    )


def _dead_ranks(state: State, config: DetectorConfig) -> Finding:
    """Processes that ended before their work."""
    dead_JR = (state.dead_records_JR >= config.dead_after_records) & ~state.finished_JR
    found_J = any_rank(dead_JR)
    # When several have died, the first to be missed went first; of these the one that was silent longest.
    order_JR = MISSED_S * state.dead_records_JR + state.time_s_J[:, None] - state.beat_s_JR
    return Finding(
        found_J=found_J,
        culprit_J=single(dead_JR, order_JR),
        ends_J=found_J,
        confidence_J=np.full(len(found_J), CERTAIN),
    )

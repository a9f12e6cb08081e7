"""Simulated jobs: repeatable, plausible, and judged alike one by one and in batches."""

import dataclasses

import numpy as np

from eagleray.watchdog.config import DetectorConfig
from eagleray.watchdog.detector import advance, verdict_of, watch
from eagleray.watchdog.frame import Frame, frame_of, records_of
from eagleray.watchdog.simulator.faults import FAULTS, draw_faults
from eagleray.watchdog.simulator.fleet import Fleet
from eagleray.watchdog.simulator.jobs import draw_jobs
from eagleray.watchdog.simulator.ranges import HELD_OUT, TUNING
from eagleray.watchdog.simulator.scoring import run_failing, run_healthy
from eagleray.watchdog.state import initial_state
from eagleray.watchdog.verdicts import Verdict

CONFIG = DetectorConfig()


def one_job(frame: Frame, job: int) -> Frame:
    return Frame(**{f.name: getattr(frame, f.name)[job] for f in dataclasses.fields(frame)})


def failing_fleet(seed: int, count: int, ranks: int) -> Fleet:
    rng = np.random.default_rng(seed)
    jobs = draw_jobs(rng, TUNING, count, ranks)
    plan = draw_faults(
        rng,
        np.arange(count) % len(FAULTS),
        ranks,
        earliest_s=(200.0, 300.0),
        ramp_s=(1.0, 10.0),
        invisible=0.0,
    )
    return Fleet(jobs, plan, TUNING, rng)


def test_a_seed_gives_the_same_seconds() -> None:
    first, second = failing_fleet(1, 8, 4), failing_fleet(1, 8, 4)
    for _ in range(50):
        a, b = first.tick(), second.tick()
        for field in dataclasses.fields(a):
            np.testing.assert_array_equal(getattr(a, field.name), getattr(b, field.name))


def test_records_and_frames_are_two_spellings_of_the_same() -> None:
    fleet = failing_fleet(2, 8, 4)
    for _ in range(200):
        frame = fleet.tick()
    for job in range(8):
        single = one_job(frame, job)
        again = frame_of(records_of(single), 4)
        for field in dataclasses.fields(single):
            np.testing.assert_allclose(getattr(again, field.name), getattr(single, field.name), atol=1.0)


def test_a_batch_is_judged_as_its_jobs_are_one_by_one() -> None:
    fleet = failing_fleet(3, 8, 2)
    frame = fleet.tick()
    state = initial_state(frame)
    looked_at = range(2, 6)
    in_batch: dict[int, list[Verdict]] = {job: [] for job in range(8)}
    alone: dict[int, list[Verdict]] = {job: [] for job in looked_at}
    states = {job: initial_state(one_job_batch(frame, job)) for job in looked_at}
    for _ in range(500):
        frame = fleet.tick()
        state, judgement = advance(state, frame, CONFIG)
        for job in np.flatnonzero(judgement.news_J):
            in_batch[job].append(verdict_of(state, frame, judgement, int(job)))
        for job in looked_at:
            records = records_of(one_job(frame, job))
            states[job], verdicts = watch(states[job], records, ranks=2, config=CONFIG)
            alone[job] += verdicts
    assert alone == {job: in_batch[job] for job in looked_at}
    assert sum(map(len, alone.values())) >= 4


def one_job_batch(frame: Frame, job: int) -> Frame:
    return Frame(**{f.name: getattr(frame, f.name)[job : job + 1] for f in dataclasses.fields(frame)})


def test_steps_only_go_forward_and_nothing_moves_after_a_hang() -> None:
    fleet = failing_fleet(4, 16, 4)
    steps = []
    for _ in range(900):
        frame = fleet.tick()
        steps.append(np.fmax.reduce(frame.step_R, axis=1))
    steps_TJ = np.fmax.accumulate(np.array(steps))
    assert (np.diff(steps_TJ, axis=0) >= 0).all()
    begun = np.flatnonzero(fleet.fault_at_s_J < 890)
    assert len(begun) >= 12
    hanging = [job for job in begun if FAULTS[job % len(FAULTS)] not in ("straggler", "data_slow")]
    for job in hanging:
        second = int(fleet.fault_at_s_J[job]) + 2
        assert steps_TJ[second, job] == steps_TJ[-1, job]


def test_the_held_out_ranges_enclose_those_the_detector_was_written_against() -> None:
    for field in dataclasses.fields(TUNING):
        tuning, held_out = getattr(TUNING, field.name), getattr(HELD_OUT, field.name)
        if isinstance(tuning, tuple):
            assert held_out[0] <= tuning[0] <= tuning[1] <= held_out[1], field.name
        else:
            assert held_out >= tuning, field.name


def test_faults_of_a_few_jobs_are_found_with_their_culprits() -> None:
    traces = run_failing(7, TUNING, ranks=4, count=64, config=CONFIG, within_s=(150.0, 400.0))
    assert len(traces) >= 60
    assert sum(trace.detected_after_s is not None for trace in traces) >= len(traces) - 2
    assert sum(trace.right_culprit for trace in traces) >= len(traces) - 5
    assert not any(trace.ended_before for trace in traces)


def test_healthy_hours_end_no_run() -> None:
    score = run_healthy(7, TUNING, ranks=4, count=128, hours_each=0.25, config=CONFIG)
    assert score.hours == 32
    assert score.ended == 0, score.ended_for

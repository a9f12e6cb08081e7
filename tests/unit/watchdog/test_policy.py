"""Recovery: less memory for the same step, then a clear end."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagleray.watchdog.config import RecoveryConfig
from eagleray.watchdog.policy import Attempt, Reason, Resume, StepMemory, Stop, decide

CONFIG = RecoveryConfig()
START = StepMemory(recompute_activations=False, micro_batch_size=4, sequences=4)
OOM = Attempt(reason="oom_hang", culprit=1, first_step=0, last_checkpoint_step=0, memory=START)


def follow(reason: Reason, start: StepMemory, made_checkpoints: bool = False) -> list[Resume | Stop]:
    """Decisions until the end, when every attempt ends for the same reason."""
    history: list[Attempt] = []
    decisions: list[Resume | Stop] = []
    memory, step = start, 0
    while True:
        ended_at = step + 10 * made_checkpoints
        history.append(
            Attempt(reason=reason, culprit=1, first_step=step, last_checkpoint_step=ended_at, memory=memory)
        )
        decisions.append(decide(history, CONFIG))
        newest = decisions[-1]
        if isinstance(newest, Stop):
            return decisions
        memory, step = newest.memory, ended_at


def test_memory_is_saved_by_recomputing_then_by_halving_and_then_the_run_stops() -> None:
    decisions = follow("oom_hang", START)
    tried = [decision.memory for decision in decisions if isinstance(decision, Resume)]
    assert tried == [
        StepMemory(recompute_activations=True, micro_batch_size=4, sequences=4),
        StepMemory(recompute_activations=True, micro_batch_size=2, sequences=4),
        StepMemory(recompute_activations=True, micro_batch_size=1, sequences=4),
    ]
    assert [memory.accumulation for memory in tried] == [1, 2, 4]
    assert isinstance(decisions[-1], Stop)
    assert "micro-batches of 1" in decisions[-1].why
    assert "more memory" in decisions[-1].why


def test_an_exception_takes_the_same_path_as_a_hang() -> None:
    as_exception = follow("oom_exception", START)
    as_hang = follow("oom_hang", START)
    assert [getattr(d, "memory", None) for d in as_exception] == [getattr(d, "memory", None) for d in as_hang]


@given(
    micro=st.integers(1, 64),
    sequences=st.integers(1, 64),
    recompute=st.booleans(),
)
def test_a_step_keeps_its_sequences_whatever_is_tried(micro: int, sequences: int, recompute: bool) -> None:
    start = StepMemory(recompute_activations=recompute, micro_batch_size=micro, sequences=sequences)
    for decision in follow("oom_hang", start):
        if isinstance(decision, Resume):
            memory = decision.memory
            assert memory.sequences == sequences
            assert (memory.accumulation - 1) * memory.micro_batch_size < sequences
            assert memory.accumulation * memory.micro_batch_size >= sequences


@pytest.mark.parametrize("reason", ["collective_hang", "dead_rank", "data_starved", "failed"])
def test_other_faults_are_answered_with_the_same_settings_until_nothing_moves(reason: Reason) -> None:
    decisions = follow(reason, START)
    assert [d.memory for d in decisions if isinstance(d, Resume)] == [START, START]
    assert isinstance(decisions[-1], Stop)
    assert "attempts_in_place allows 3" in decisions[-1].why


def test_waits_double_in_place_and_begin_anew_after_progress() -> None:
    stuck = replace(OOM, reason="dead_rank")
    first = decide([stuck], CONFIG)
    second = decide([stuck, stuck], CONFIG)
    moved = decide([stuck, stuck, replace(stuck, last_checkpoint_step=10)], CONFIG)
    assert [d.wait_s for d in (first, second, moved) if isinstance(d, Resume)] == [5.0, 10.0, 5.0]


def test_a_run_that_moves_a_little_each_time_still_has_a_budget() -> None:
    decisions = follow("dead_rank", START, made_checkpoints=True)
    assert len(decisions) == CONFIG.attempts
    assert isinstance(decisions[-1], Stop)
    assert "recovery.attempts allows 20" in decisions[-1].why
    assert "dead_rank at step 200" in decisions[-1].why


def test_no_wait_is_longer_than_the_ceiling() -> None:
    patient = RecoveryConfig(attempts_in_place=15)
    stuck = replace(OOM, reason="dead_rank")
    decision = decide([stuck] * 12, patient)
    assert isinstance(decision, Resume)
    assert decision.wait_s == 300.0

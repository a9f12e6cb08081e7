"""Attempts one after another, with Ray's fit replaced by what may come of it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from ray.exceptions import ActorUnavailableError
from ray.train import TrainingFailedError

from eagleray.cluster.attempts import await_room, run_attempts, step_memory, why_ended, with_memory
from eagleray.cluster.rank_watch import Watched, is_out_of_memory
from eagleray.errors import ClusterError, NumericsError
from eagleray.training.config import TrainingConfig
from eagleray.watchdog.config import RecoveryConfig, WatchdogConfig
from eagleray.watchdog.heartbeat import HeartbeatFolder
from eagleray.watchdog.policy import StepMemory
from eagleray.watchdog.verdicts import Verdict

UNWATCHED = WatchdogConfig(enabled=False, recovery=RecoveryConfig(backoff_s=0))
TRAINING = TrainingConfig(global_batch_size=8, micro_batch_size=4, workers=2, watchdog=UNWATCHED)
CPU = torch.device("cpu")


class FakeMachines:
    """Machines with as much room as they are told to have; remembers what was asked of them, in order."""

    def __init__(self, room: Callable[[], int]):
        self._room = room
        self.told: list[str] = []

    def room(self) -> int:
        return self._room()

    def ask(self) -> None:
        self.told.append("ask")

    def withdraw(self) -> None:
        self.told.append("withdraw")


def rank_fails(run: Path, rank: int, error: Exception) -> None:
    """What a worker leaves behind when its training raises."""
    with pytest.raises(type(error)), Watched(None, run, rank, CPU):
        raise error


def test_out_of_memory_is_answered_with_recomputing_then_smaller_micro_batches_then_a_stop(
    tmp_path: Path,
) -> None:
    tried: list[tuple[bool, int]] = []

    def fit(training: TrainingConfig, _: Path | None) -> None:
        tried.append((training.recompute_activations, training.micro_batch_size))
        rank_fails(tmp_path, 1, torch.OutOfMemoryError("CUDA out of memory"))
        raise TrainingFailedError("a worker failed")

    with pytest.raises(ClusterError, match="rank 1 ran out of memory"):
        run_attempts(fit, TRAINING, tmp_path, tmp_path / "incidents", "eagle3", FakeMachines(lambda: 2))
    assert tried == [(False, 4), (True, 4), (True, 2), (True, 1)]


def test_an_error_of_ours_is_raised_at_once_as_it_was(tmp_path: Path) -> None:
    attempts = []

    def fit(training: TrainingConfig, _: Path | None) -> None:
        attempts.append(training)
        rank_fails(tmp_path, 0, NumericsError("Loss of step 3 is nan."))
        raise TrainingFailedError("a worker failed")

    with pytest.raises(NumericsError, match="step 3"):
        run_attempts(fit, TRAINING, tmp_path, tmp_path / "incidents", "eagle3", FakeMachines(lambda: 2))
    assert len(attempts) == 1


@pytest.mark.parametrize(
    "failure", [TrainingFailedError("killed"), ActorUnavailableError("reset", b"1" * 16)]
)
def test_a_failure_without_last_words_is_tried_again_with_the_same_settings(
    tmp_path: Path, failure: Exception
) -> None:
    tried: list[TrainingConfig] = []

    def fit(training: TrainingConfig, _: Path | None) -> None:
        tried.append(training)
        if len(tried) < 3:
            raise failure

    run_attempts(fit, TRAINING, tmp_path, tmp_path / "incidents", "eagle3", FakeMachines(lambda: 2))
    assert tried == [TRAINING] * 3


def test_a_lost_machine_costs_an_attempt_and_the_next_goes_on_with_fewer_workers(tmp_path: Path) -> None:
    elastic = TRAINING.model_copy(update={"min_workers": 1, "wait_for_machines_s": 0.0})
    tried: list[int] = []

    def fit(training: TrainingConfig, _: Path | None) -> None:
        tried.append(training.workers)
        if len(tried) == 1:
            raise TrainingFailedError("a node died")

    run_attempts(
        fit, elastic, tmp_path, tmp_path / "incidents", "eagle3", FakeMachines(lambda: 2 if not tried else 1)
    )
    assert tried == [2, 1]


def test_without_enough_machines_no_attempt_is_begun(tmp_path: Path) -> None:
    patient = TRAINING.model_copy(update={"wait_for_machines_s": 0.0})
    with pytest.raises(ClusterError, match="room for 1 of 2 workers"):
        run_attempts(
            lambda *_: pytest.fail("begun"),
            patient,
            tmp_path,
            tmp_path / "incidents",
            "eagle3",
            FakeMachines(lambda: 1),
        )


@pytest.mark.parametrize(
    ("rooms", "told"),
    [([2], ["withdraw"]), ([1, 0, 2], ["ask", "ask", "withdraw"])],
    ids=["room at once", "room after a while"],
)
def test_machines_are_asked_for_while_they_are_waited_for_and_no_longer(
    monkeypatch: pytest.MonkeyPatch, rooms: list[int], told: list[str]
) -> None:
    monkeypatch.setattr("eagleray.cluster.attempts.LOOK_FOR_ROOM_S", 0.0)
    seen: Iterator[int] = iter(rooms)
    machines = FakeMachines(lambda: next(seen))
    assert await_room(TRAINING, machines, "eagle3") == 2
    assert machines.told == told


@pytest.mark.parametrize("min_workers", [1, 2], ids=["goes on with fewer", "gives up"])
def test_what_was_asked_for_is_taken_back_however_the_wait_ends(
    monkeypatch: pytest.MonkeyPatch, min_workers: int
) -> None:
    monkeypatch.setattr("eagleray.cluster.attempts.LOOK_FOR_ROOM_S", 0.01)
    machines = FakeMachines(lambda: 1)
    waiting = TRAINING.model_copy(update={"wait_for_machines_s": 0.05, "min_workers": min_workers})
    if min_workers == 1:
        assert await_room(waiting, machines, "eagle3") == 1
    else:
        with pytest.raises(ClusterError, match="room for 1 of 2 workers"):
            await_room(waiting, machines, "eagle3")
    assert machines.told[0] == "ask"
    assert machines.told[-1] == "withdraw"


def test_what_was_asked_for_is_taken_back_when_the_cluster_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eagleray.cluster.attempts.LOOK_FOR_ROOM_S", 0.0)
    machines = FakeMachines(lambda: 0 if not machines.told else int("gone"))
    with pytest.raises(ValueError, match="gone"):
        await_room(TRAINING, machines, "eagle3")
    assert machines.told == ["ask", "withdraw"]


def test_an_exception_for_want_of_memory_outweighs_the_hang_that_it_caused(tmp_path: Path) -> None:
    hang = Verdict(
        kind="collective_hang",
        time_s=1.0,
        culprit=0,
        confidence=0.7,
        ends_attempt=True,
        stalled_s=60.0,
        evidence=(),
    )
    assert why_ended(tmp_path, hang) == ("collective_hang", 0)
    rank_fails(tmp_path, 1, RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"))
    assert why_ended(tmp_path, hang) == ("oom_exception", 1)
    assert why_ended(tmp_path, None) == ("oom_exception", 1)


def test_a_failing_rank_says_so_in_its_heartbeat(tmp_path: Path) -> None:
    watched = Watched(tmp_path / "beats", tmp_path, 0, CPU)
    watched.__enter__().enter("forward")
    watched.__exit__(MemoryError, MemoryError(), None)
    (record,) = HeartbeatFolder(tmp_path / "beats").read(0.0)
    assert (record.phase, record.oom_count, record.finished) == ("forward", 1, True)


def test_a_rank_that_fails_of_a_dead_peer_neither_finishes_nor_takes_the_blame(tmp_path: Path) -> None:
    watched = Watched(tmp_path / "beats", tmp_path, 0, CPU)
    broken = RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:3421")
    watched.__enter__().enter_collective()
    watched.__exit__(RuntimeError, broken, None)
    (record,) = HeartbeatFolder(tmp_path / "beats").read(0.0)
    assert not record.finished
    assert why_ended(tmp_path, None) == ("failed", None)


def test_other_runtime_errors_are_not_a_want_of_memory() -> None:
    assert not is_out_of_memory(RuntimeError("Connection closed by peer"))


def test_memory_settings_change_nothing_else_of_a_training() -> None:
    memory = step_memory(TRAINING)
    assert memory == StepMemory(recompute_activations=False, micro_batch_size=4, sequences=4)
    changed = with_memory(TRAINING, replace(memory, recompute_activations=True, micro_batch_size=1))
    assert changed.model_dump(exclude={"recompute_activations", "micro_batch_size"}) == TRAINING.model_dump(
        exclude={"recompute_activations", "micro_batch_size"}
    )
    assert step_memory(TRAINING.model_copy(update={"micro_batch_size": 64})).micro_batch_size == 4

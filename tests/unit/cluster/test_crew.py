"""A crew without a cluster: who gets which task, and what a death costs."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayActorError, RayTaskError

from eagleray.cluster import crew
from eagleray.cluster.crew import Crew
from eagleray.cluster.measuring import open_regime
from eagleray.errors import ClusterError, EngineError
from eagleray.evaluation.regime import Machine, Regime


class Reference:
    """A task under way."""

    def __init__(self, task: Any):
        self.task = task


class Cluster:
    """As much of Ray as a crew needs: actors that answer when they are waited for, in order."""

    def __init__(self, answer: Callable[[Any], Any]):
        self.answer = answer
        self.made = 0
        self.killed: list[int] = []
        self.most_running = 0

    def remote(self, actor: type) -> Any:
        def make(*arguments: Any) -> Any:
            self.made += 1
            run = SimpleNamespace(remote=Reference)
            return SimpleNamespace(number=self.made, run=run, regime=run)

        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=make))

    def wait(self, references: list[Any]) -> tuple[list[Any], list[Any]]:
        self.most_running = max(self.most_running, len(references))
        return references[:1], references[1:]

    def get(self, reference: Any) -> Any:
        if isinstance(reference, list):
            return [self.get(each) for each in reference]
        return self.answer(reference.task)

    def kill(self, actor: Any) -> None:
        self.killed.append(actor.number)


class Tasks:
    """A source that remembers what it was told."""

    def __init__(self, *tasks: str):
        self.waiting = list(tasks)
        self.told: list[tuple[str, str, Any]] = []

    def next_task(self) -> tuple[str, str] | None:
        return (self.waiting[0], self.waiting.pop(0)) if self.waiting else None

    def done(self, token: str, outcome: Any) -> None:
        self.told.append(("done", token, outcome))

    def failed(self, token: str, reason: str) -> None:
        self.told.append(("failed", token, reason))

    def lost(self, token: str, reason: str) -> None:
        self.told.append(("lost", token, reason))


def regime(cores: int) -> Regime:
    machine = Machine(
        cpu_model="c", cores=cores, threads=1, accelerator="none", torch_version="2", kernels="torch"
    )
    return Regime(
        machine=machine,
        workers=3,
        engine="native",
        engine_version="0",
        engine_settings={},
        dtype="float32",
        target_hash="t",
        drafter_hashes={},
        template_hash="c",
        workload_hash="w",
        acceptance_concurrency=1,
        max_new_tokens=8,
        timing_new_tokens=8,
    )


def task_error() -> RayTaskError:
    error = RayTaskError.__new__(RayTaskError)
    Exception.__init__(error, "traceback")
    error.cause = EngineError("no such depth")
    return error


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Cluster, Crew]]:
    def make(answer: Callable[[Any], Any] = str.upper, size: int = 2) -> tuple[Cluster, Crew]:
        cluster = Cluster(answer)
        monkeypatch.setattr(crew, "ray", cluster)
        return cluster, Crew(object, (), size, {})

    return make


def test_sources_take_turns_and_no_more_run_than_there_are_members(
    start: Callable[..., tuple[Cluster, Crew]],
) -> None:
    cluster, workers = start()
    one, other, begun = Tasks("a", "b", "c"), Tasks("x"), []
    workers.work([one, other], lambda: begun.append(1))
    assert one.told == [("done", "a", "A"), ("done", "b", "B"), ("done", "c", "C")]
    assert other.told == [("done", "x", "X")]
    assert cluster.most_running == 2
    assert len(begun) == 8, "told at every beginning and end"


def test_a_dead_member_loses_its_task_alone_and_is_replaced(
    start: Callable[..., tuple[Cluster, Crew]],
) -> None:
    def answer(task: str) -> str:
        if task == "b":
            raise RayActorError
        return task

    cluster, workers = start(answer)
    source = Tasks("a", "b", "c")
    workers.work([source])
    told = [(word, token) for word, token, _ in source.told]
    assert told == [("done", "a"), ("lost", "b"), ("done", "c")]
    assert cluster.made == 3


def test_an_error_in_a_task_is_told_and_ends_nothing(start: Callable[..., tuple[Cluster, Crew]]) -> None:
    def answer(task: str) -> str:
        if task == "a":
            raise task_error()
        return task

    cluster, workers = start(answer)
    source = Tasks("a", "b")
    workers.work([source])
    assert source.told == [("failed", "a", "EngineError: no such depth"), ("done", "b", "b")]
    assert cluster.made == 2


def test_all_gives_outcomes_in_the_order_of_the_tasks_whatever_dies(
    start: Callable[..., tuple[Cluster, Crew]],
) -> None:
    deaths = iter([True, False, True])

    def answer(task: str) -> str:
        if next(deaths, False):
            raise RayActorError
        return task.upper()

    _, workers = start(answer)
    assert workers.all(["a", "b", "c"]) == ["A", "B", "C"]


def test_work_that_kills_every_process_is_given_up(start: Callable[..., tuple[Cluster, Crew]]) -> None:
    def answer(_: str) -> str:
        raise RayActorError

    _, workers = start(answer)
    with pytest.raises(ClusterError, match=r"study\.workers"):
        workers.all(["a"])


def test_an_error_of_ours_in_every_member_reaches_the_caller_as_it_is(
    start: Callable[..., tuple[Cluster, Crew]],
) -> None:
    def answer(_: str) -> str:
        raise task_error()

    _, workers = start(answer)
    with pytest.raises(EngineError, match="no such depth"):
        workers.everywhere("regime", "code")


def test_dismissed_members_are_ended(start: Callable[..., tuple[Cluster, Crew]]) -> None:
    cluster, workers = start(size=3)
    workers.dismiss()
    assert cluster.killed == [1, 2, 3]


def test_processes_on_unlike_machines_are_refused_with_what_differs(
    start: Callable[..., tuple[Cluster, Crew]],
) -> None:
    cores = iter([2, 2, 64])
    _, workers = start(lambda _: regime(next(cores)), size=3)
    with pytest.raises(ClusterError, match=r"machine\.cores was 2, now 64"):
        open_regime(workers, "code")
    _, workers = start(lambda _: regime(2), size=3)
    assert open_regime(workers, "code") == regime(2)

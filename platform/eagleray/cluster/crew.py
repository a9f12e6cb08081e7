"""A few processes of one kind that do tasks as they come; a dead one loses its task and nothing else."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from eagleray.errors import ClusterError, EagleRayError

MAX_RESTARTS = 3
"""Deaths over one task of `everywhere` or `all` before the work is given up."""


class TaskSource(Protocol):
    """Where tasks come from and outcomes go to. A token stands for a task that is under way."""

    def next_task(self) -> tuple[Any, Any] | None:
        """A token and a task; None while there is nothing to begin."""
        ...

    def done(self, token: Any, outcome: Any) -> Any:
        """A task ended."""
        ...

    def failed(self, token: Any, reason: str) -> None:
        """A task raised an error."""
        ...

    def lost(self, token: Any, reason: str) -> None:
        """The process of a task died."""
        ...


class Crew:
    """Actors with a method `run(task)`, one task at a time each.

    Args:
        options: What Ray places an actor by.
    """

    def __init__(self, actor: type, arguments: Sequence[Any], size: int, options: dict[str, Any]):
        self._make = lambda: ray.remote(actor).options(**options).remote(*arguments)
        self._members = [self._make() for _ in range(size)]

    def everywhere(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of every member at the same time.

        Raises:
            ClusterError: A member died.
        """
        with _errors_of_ours():
            found: list[Any] = ray.get(
                [getattr(member, method).remote(*arguments) for member in self._members]
            )
            return found

    def all(self, tasks: Sequence[Any]) -> list[Any]:
        """Do all of some tasks; outcomes in their order.

        Raises:
            ClusterError: Members kept dying.
        """
        source = _List(tasks)
        self.work([source])
        return [source.outcomes[place] for place in range(len(tasks))]

    def work(self, sources: Sequence[TaskSource], on_change: Callable[[], None] = lambda: None) -> None:
        """Do tasks, the sources in turn, until none of them has another one.

        Args:
            on_change: Called whenever a task began or ended.
        """
        idle = list(range(len(self._members)))
        running: dict[Any, tuple[int, TaskSource, Any]] = {}
        turn = 0
        while True:
            silent = 0
            while idle and silent < len(sources):
                source = sources[turn % len(sources)]
                turn += 1
                begun = source.next_task()
                silent = 0 if begun else silent + 1
                if begun:
                    member = idle.pop()
                    running[self._members[member].run.remote(begun[1])] = (member, source, begun[0])
                    on_change()
            if not running:
                return
            for reference in ray.wait(list(running))[0]:
                member, source, token = running.pop(reference)
                self._settle(reference, member, source, token)
                idle.append(member)
                on_change()

    def _settle(self, reference: Any, member: int, source: TaskSource, token: Any) -> None:
        try:
            outcome = ray.get(reference)
        except RayTaskError as error:
            source.failed(token, f"{type(error.cause).__name__}: {error.cause}")
        except RayError as error:
            if isinstance(error, RayActorError):
                self._members[member] = self._make()
            source.lost(token, str(error).strip().splitlines()[0])
        else:
            source.done(token, outcome)

    def dismiss(self) -> None:
        """End the processes."""
        for member in self._members:
            ray.kill(member)


class _List:
    """Tasks that must all be done."""

    def __init__(self, tasks: Sequence[Any]):
        self._waiting = list(enumerate(tasks))
        self._tasks = tasks
        self._deaths = 0
        self.outcomes: dict[int, Any] = {}

    def next_task(self) -> tuple[Any, Any] | None:
        return self._waiting.pop(0) if self._waiting else None

    def done(self, token: Any, outcome: Any) -> None:
        self.outcomes[token] = outcome

    def failed(self, token: Any, reason: str) -> None:
        raise ClusterError(f"A measuring process failed: {reason}")

    def lost(self, token: Any, reason: str) -> None:
        self._deaths += 1
        if self._deaths > MAX_RESTARTS:
            raise ClusterError(
                f"Measuring processes keep dying: {reason}. Lower study.workers, or look at memory."
            )
        self._waiting.append((token, self._tasks[token]))


@contextlib.contextmanager
def _errors_of_ours() -> Iterator[None]:
    try:
        yield
    except RayTaskError as error:
        raise error.cause if isinstance(error.cause, EagleRayError) else error from None
    except RayActorError as error:
        raise ClusterError(f"A process could not start or died: {error}") from error

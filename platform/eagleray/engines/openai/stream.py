"""The stream of an engine that runs elsewhere: every request is a coroutine that ends in bounded time."""

import queue
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from eagleray.engines.base import EngineTimes, FailedRequest, Generation, GenerationRequest
from eagleray.engines.openai.background import BackgroundLoop
from eagleray.errors import EngineError

WAIT_S = 1.0
"""Longest time that `advance` waits for news, where nothing else waits for it to return."""

Outcome = Generation | FailedRequest
Tell = Callable[[tuple[int, ...]], None]
"""Takes ids of an answer as they come. Called in the background loop's thread."""


class Answers(Protocol):
    """What asks a server."""

    def check(self, request: GenerationRequest) -> None:
        """Refuse what cannot be asked.

        Raises:
            EngineError: The message says why.
        """
        ...

    def answer(self, request: GenerationRequest, tell: Tell) -> Coroutine[Any, Any, Outcome]:
        """Ask. What was told before the end is the beginning of the answer; nothing need be told.

        Raises:
            EngineError: The server answers nothing any more.
        """
        ...


@dataclass(eq=False)
class _Running:
    request_id: str
    future: "Future[Outcome]" = field(init=False)
    tokens: int = 0
    untold: list[int] = field(default_factory=list)


class ServerStream:
    """A `RequestStream` over one server. What the server does cannot be told apart: all waiting counts as
    verification.

    Args:
        wait_s: Longest time that `advance` waits for news. Whatever else its caller does waits as long.
    """

    def __init__(self, answers: Answers, loop: BackgroundLoop, wait_s: float = WAIT_S):
        self.delivered_tokens = 0
        self._answers = answers
        self._loop = loop
        self._wait_s = wait_s
        self._running: dict[str, _Running] = {}
        self._news: queue.SimpleQueue[tuple[_Running, tuple[int, ...] | None]] = queue.SimpleQueue()
        """Ids that came, and None at the end of an answer."""
        self._waited_s = 0.0

    @property
    def unfinished(self) -> int:
        """Requests that wait for a connection or for their answer."""
        return len(self._running)

    @property
    def times(self) -> EngineTimes:
        """The account so far."""
        return EngineTimes(prefill_s=0.0, draft_s=0.0, verify_s=self._waited_s, host_s=0.0)

    def submit(self, request: GenerationRequest) -> None:
        """Send a request as soon as a connection is free.

        Raises:
            EngineError: See `Answers.check`; or a request of that id is unfinished.
        """
        self._answers.check(request)
        request_id = request.request_id
        if request_id in self._running:
            raise EngineError(
                f"Request {request_id!r} is still unfinished in this stream. "
                "Give every request an id of its own."
            )
        running = _Running(request_id)
        running.future = self._loop.start(
            self._answers.answer(request, lambda ids: self._news.put((running, ids)))
        )
        self._running[request_id] = running
        running.future.add_done_callback(lambda _: self._news.put((running, None)))

    def advance(self) -> list[Outcome]:
        """Take in what came, after a moment's wait if nothing did, and return what was answered.

        Raises:
            EngineError: The server is down, or the engine was closed. Everything unfinished is withdrawn.
        """
        started_s = time.monotonic()
        outcomes: list[Outcome] = []
        heard = False
        try:
            while self._running:
                running, ids = self._news.get(timeout=0.0 if heard else self._wait_s)
                if self._running.get(running.request_id) is not running:
                    continue  # withdrawn meanwhile
                heard = True
                if ids is not None:
                    running.untold += ids
                    self._count(running, running.tokens + len(ids))
                    continue
                del self._running[running.request_id]
                outcomes.append(outcome := _result(running.future))
                if isinstance(outcome, Generation):
                    self._count(running, len(outcome.answer_ids))
        except queue.Empty:
            pass
        except EngineError:
            for request_id in list(self._running):
                self.cancel(request_id)
            raise
        finally:
            self._waited_s += time.monotonic() - started_s
        return outcomes

    def new_ids(self) -> dict[str, tuple[int, ...]]:
        """Ids that running requests got since the last call; none where answers come whole."""
        new = {name: tuple(running.untold) for name, running in self._running.items() if running.untold}
        for name in new:
            self._running[name].untold.clear()
        return new

    def cancel(self, request_id: str) -> None:
        """Withdraw a request: its connection is closed, which servers take as an abort."""
        if (running := self._running.pop(request_id, None)) is not None:
            running.future.cancel()

    def _count(self, running: _Running, tokens: int) -> None:
        """Take note of an answer's length; its first token is nobody's cycle."""
        self.delivered_tokens += max(tokens - 1, 0) - max(running.tokens - 1, 0)
        running.tokens = tokens


def _result(done: "Future[Outcome]") -> Outcome:
    try:
        return done.result()
    except CancelledError:
        raise EngineError("The engine was closed while requests were unfinished.") from None

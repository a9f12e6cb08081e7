"""The stream of an engine that runs elsewhere: every request is a coroutine that ends in bounded time."""

import queue
import time
from concurrent.futures import CancelledError, Future

from eagleray.engines.base import EngineTimes, FailedRequest, Generation, GenerationRequest
from eagleray.engines.openai.answering import Answering
from eagleray.engines.openai.background import BackgroundLoop
from eagleray.errors import EngineError

WAIT_S = 1.0
"""Longest time that `advance` waits for an answer."""

Outcome = Generation | FailedRequest


class ServerStream:
    """A `RequestStream` over one server. What the server does cannot be told apart: all waiting counts as
    verification."""

    def __init__(self, answering: Answering, loop: BackgroundLoop):
        self.delivered_tokens = 0
        self._answering = answering
        self._loop = loop
        self._running: dict[str, Future[Outcome]] = {}
        self._done: queue.SimpleQueue[tuple[str, Future[Outcome]]] = queue.SimpleQueue()
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
            EngineError: See `Answering.check`; or a request of that id is unfinished.
        """
        self._answering.check(request)
        request_id = request.request_id
        if request_id in self._running:
            raise EngineError(
                f"Request {request_id!r} is still unfinished in this stream. "
                "Give every request an id of its own."
            )
        future = self._loop.start(self._answering.answer(request))
        self._running[request_id] = future
        future.add_done_callback(lambda done: self._done.put((request_id, done)))

    def advance(self) -> list[Outcome]:
        """Return what was answered, after a moment's wait if nothing was.

        Raises:
            EngineError: The server is down, or the engine was closed. Everything unfinished is withdrawn.
        """
        started_s = time.monotonic()
        outcomes: list[Outcome] = []
        try:
            while self._running:
                request_id, done = self._done.get(timeout=0.0 if outcomes else WAIT_S)
                if self._running.get(request_id) is done:
                    del self._running[request_id]
                    outcomes.append(_result(done))
        except queue.Empty:
            pass
        except EngineError:
            for request_id in list(self._running):
                self.cancel(request_id)
            raise
        finally:
            self._waited_s += time.monotonic() - started_s
        self.delivered_tokens += sum(
            len(outcome.answer_ids) - 1 for outcome in outcomes if isinstance(outcome, Generation)
        )
        return outcomes

    def new_ids(self) -> dict[str, tuple[int, ...]]:
        """Answers come whole."""
        return {}

    def cancel(self, request_id: str) -> None:
        """Withdraw a request: its connection is closed, which servers take as an abort."""
        if (future := self._running.pop(request_id, None)) is not None:
            future.cancel()


def _result(done: "Future[Outcome]") -> Outcome:
    try:
        return done.result()
    except CancelledError:
        raise EngineError("The engine was closed while requests were unfinished.") from None

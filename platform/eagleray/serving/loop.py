"""One thread that advances one engine for everybody: requests come in from any thread, updates go out.

Requests run in lanes, each a stream of the engine: one a drafter, while a new one is tried beside the old.

The thread is the only one that touches the engine. It sleeps while nothing is unfinished; between two
cycles it takes in what was asked of it meanwhile. Awakened, it waits a moment for others: clients that were
answered together ask together again, and prompts that are run one by one cost a forward each.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from eagleray.engines.base import FailedRequest, Generation, GenerationRequest, RequestStream
from eagleray.errors import EngineError

PATIENCE = 0.1
"""How long to wait for one more request before the first of them run, in cycles of the engine."""
LONGEST_PATIENCE = 1.0
"""How long to wait for all of them."""


@dataclass(frozen=True, kw_only=True)
class RejectedRequest:
    """A request that the engine cannot serve, with its reason for the client."""

    request_id: str
    reason: str


Outcome = Generation | FailedRequest | RejectedRequest


@dataclass(frozen=True, kw_only=True)
class Update:
    """What happened to one request in one cycle."""

    request_id: str
    ids: tuple[int, ...] = ()
    """Ids emitted since the last update."""
    outcome: Outcome | None = None
    """Set in the last update of a request."""


Deliver = Callable[[list[Update]], None]
"""Takes the updates of one cycle. Called in the engine's thread, so it must return at once."""


class EngineLoop:
    """Drives lanes until it is closed, or until the engine breaks: then everything unfinished fails.

    Args:
        lane: Name of the first lane.
    """

    def __init__(self, lane: str, stream: RequestStream, deliver: Deliver):
        self._lanes = {lane: stream}
        self._leaving: dict[str, Callable[[], None]] = {}
        """Lanes that go once they are empty, and what is called then."""
        self._lane_of: dict[str, str] = {}
        self._deliver = deliver
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._told: dict[str, int] = {}
        """Ids that were told, by watched request."""
        self._unfinished: set[str] = set()
        self._closing = False
        self._lock = threading.Lock()
        self._progressed_s = time.monotonic()
        self._cycle_s = 0.0
        """What the last cycle took."""
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether requests are taken."""
        return self._thread.is_alive() and not self._closing

    @property
    def idle_s(self) -> float:
        """Seconds since the last sign of progress while work is unfinished; 0 without work."""
        return time.monotonic() - self._progressed_s if self._unfinished else 0.0

    def open_lane(self, lane: str, stream: RequestStream) -> None:
        """Add a lane, from any thread."""
        self._commands.put(lambda: self._lanes.update({lane: stream}))

    def close_lane(self, lane: str, gone: Callable[[], None]) -> None:
        """Let a lane go once it is empty, from any thread. Nothing may be submitted to it any more.

        Args:
            gone: Called then, in a thread of its own.
        """
        self._commands.put(lambda: self._leaving.update({lane: gone}))

    def submit(self, request: GenerationRequest, lane: str, *, watch: bool) -> bool:
        """Hand a request in, from any thread.

        Args:
            watch: Also tell of every cycle; otherwise the outcome is the only update.

        Returns:
            False if the engine has stopped: there will be no update.
        """
        with self._lock:
            if not self.alive:
                return False
            if not self._unfinished:
                self._progressed_s = time.monotonic()
            self._unfinished.add(request.request_id)
            self._commands.put(lambda: self._submit(request, lane, watch))
            return True

    def cancel(self, request_id: str) -> None:
        """Withdraw a request, from any thread. An update that is on its way may still arrive."""
        self._commands.put(lambda: self._cancel(request_id))

    def close(self, timeout_s: float = 10.0) -> None:
        """End the thread; what is unfinished fails."""
        self._commands.put(self._close)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while self._take_commands():
                self._cycle()
        finally:
            with self._lock:
                self._closing = True
                lost = [
                    FailedRequest(request_id=name, reason="the engine stopped") for name in self._unfinished
                ]
                self._unfinished.clear()
            self._deliver([Update(request_id=one.request_id, outcome=one) for one in lost])

    def _take_commands(self) -> bool:
        """Do what was asked for, waiting while there is nothing else to do. False to end."""
        if not any(self._busy()):
            self._sleep()
        while not self._closing and not self._commands.empty():
            self._commands.get()()
        return not self._closing

    def _sleep(self) -> None:
        """Wait for a request, and then for as long as one follows another."""
        while not self._closing and not any(self._busy()):
            self._commands.get()()
            self._let_go()
        latest_s = time.monotonic() + LONGEST_PATIENCE * self._cycle_s
        with suppress(queue.Empty):
            while not self._closing and (left_s := latest_s - time.monotonic()) > 0.0:
                self._commands.get(timeout=min(left_s, PATIENCE * self._cycle_s))()

    def _busy(self) -> Iterator[RequestStream]:
        return (stream for stream in self._lanes.values() if stream.unfinished)

    def _cycle(self) -> None:
        began_s = time.monotonic()
        for stream in list(self._busy()):
            before = stream.delivered_tokens
            outcomes = stream.advance()
            if outcomes or stream.delivered_tokens > before:
                self._progressed_s = time.monotonic()
            updates = self._news(stream) + [self._end(outcome) for outcome in outcomes]
            if updates:
                self._deliver(updates)
        self._cycle_s = time.monotonic() - began_s
        self._let_go()

    def _let_go(self) -> None:
        for lane in [lane for lane in self._leaving if not self._lanes[lane].unfinished]:
            del self._lanes[lane]
            threading.Thread(target=self._leaving.pop(lane), name=f"end of {lane}", daemon=True).start()

    def _news(self, stream: RequestStream) -> list[Update]:
        if not self._told:
            return []
        news = {name: ids for name, ids in stream.new_ids().items() if ids and name in self._told}
        for request_id, ids in news.items():
            self._told[request_id] += len(ids)
        return [Update(request_id=request_id, ids=ids) for request_id, ids in news.items()]

    def _end(self, outcome: Outcome) -> Update:
        told = self._forget(outcome.request_id)
        ids = outcome.answer_ids[told:] if isinstance(outcome, Generation) else ()
        return Update(request_id=outcome.request_id, ids=ids, outcome=outcome)

    def _submit(self, request: GenerationRequest, lane: str, watch: bool) -> None:
        try:
            self._lanes[lane].submit(request)
        except EngineError as error:
            rejected = RejectedRequest(request_id=request.request_id, reason=str(error))
            self._deliver([self._end(rejected)])
            return
        self._lane_of[request.request_id] = lane
        if watch:
            self._told[request.request_id] = 0

    def _cancel(self, request_id: str) -> None:
        if (lane := self._lane_of.get(request_id)) is not None:
            self._lanes[lane].cancel(request_id)
        self._forget(request_id)

    def _forget(self, request_id: str) -> int:
        """Drop what is known of a request; returns how many of its ids were told."""
        self._unfinished.discard(request_id)
        self._lane_of.pop(request_id, None)
        return self._told.pop(request_id, 0)

    def _close(self) -> None:
        self._closing = True

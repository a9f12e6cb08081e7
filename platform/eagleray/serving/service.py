"""One served engine: admits requests within its limits, answers them, keeps account."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from eagleray.corpus.answer_text import AnswerText
from eagleray.corpus.chat import ChatTemplate
from eagleray.engines.base import FailedRequest, Generation, GenerationRequest, RequestStream
from eagleray.serving.account import Account
from eagleray.serving.answers import Answers
from eagleray.serving.asks import Ask, Asking
from eagleray.serving.canary import Canary, Decision
from eagleray.serving.capture import Capture
from eagleray.serving.config import DraftConfig, ServeConfig
from eagleray.serving.health import Health, judge_health
from eagleray.serving.loop import EngineLoop, Update
from eagleray.serving.refusals import BusyError, NotReadyError
from eagleray.serving.replies import Replies

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Lane:
    """A stream of the engine with one drafter, or with none."""

    name: str
    stream: RequestStream
    draft: DraftConfig | None
    facts: dict[str, Any]
    """What it adds to the regime."""
    fault: Callable[[], str | None] = lambda: None
    """Why it answers no more, where a process of its own does; None while it runs."""
    close: Callable[[], None] = lambda: None
    """Ends what it runs on, once nothing is asked of it any more. The second call does nothing."""


OpenLane = Callable[[DraftConfig | None], Lane]
"""Loads a drafter and opens a stream with it."""


class Service:
    """Everything of a server but HTTP. Its coroutines run in one event loop.

    Args:
        open_lane: Called for the drafter of the settings, and for each that is swapped in.
        context_window_tokens: Prompt and answer together, as clients are told.
        regime: What numbers measured here depend on, beside the drafter.
    """

    def __init__(
        self,
        config: ServeConfig,
        open_lane: OpenLane,
        chat: ChatTemplate,
        context_window_tokens: int,
        regime: Mapping[str, Any],
    ):
        self.config = config
        self.context_window_tokens = context_window_tokens
        self.started_at = int(time.time())
        self.asking = Asking(chat, config.model, config.limits)
        self.account = Account(config.health.window_cycles)
        self.capture = Capture(config.capture) if config.capture else None
        self.swaps: list[str] = []
        """What became of each drafter that was swapped in."""
        self._open_lane = open_lane
        self._live = open_lane(config.draft)
        self._lanes = [self._live]
        """Every one that was not closed yet."""
        self._candidate: Lane | None = None
        self._canary = Canary(config.canary)
        self._regime = dict(regime)
        self._chat = chat
        self._room = config.engine.concurrency + config.limits.max_queued_requests
        self._updates: dict[str, asyncio.Queue[Update]] = {}
        """Where the updates of an unfinished request go."""
        self._shadows: set[asyncio.Task[None]] = set()
        self._events: asyncio.AbstractEventLoop | None = None
        self._engine = EngineLoop(self._live.name, self._live.stream, self._deliver)

    @property
    def regime(self) -> dict[str, Any]:
        """What numbers measured here depend on now."""
        return {**self._regime, **self._live.facts}

    @property
    def health(self) -> Health:
        """How the engine fares."""
        return judge_health(
            self.config.health,
            alive=self._engine.alive,
            fault=self._live.fault(),
            idle_s=self._engine.idle_s,
            draft=self._live.draft,
            recent=self.account.recent,
        )

    @property
    def engine_s(self) -> dict[str, float]:
        """Seconds since the start that the live drafter's stream worked, by what it did."""
        times = self._live.stream.times
        return {
            "prefill": times.prefill_s,
            "draft": times.draft_s,
            "verify": times.verify_s,
            "host": times.host_s,
        }

    @property
    def unfinished(self) -> int:
        """Answers that wait or grow."""
        return len(self._updates)

    @asynccontextmanager
    async def answers(self, ask: Ask) -> AsyncIterator[Answers]:
        """Have a request answered; leaving the block withdraws what is unfinished.

        Raises:
            BusyError: Too many answers are unfinished already.
            NotReadyError: The engine has stopped.
        """
        if len(self._updates) + len(ask.requests) > self._room:
            raise BusyError(
                f"{len(self._updates)} answers are unfinished and {self._room} may be; try again later.",
                retry_after_s=1,
            )
        self._events = asyncio.get_running_loop()
        updates: asyncio.Queue[Update] = asyncio.Queue()
        texts = [
            AnswerText(self._chat.show, request.prompt_ids, request.stop_strings) for request in ask.requests
        ]
        deadline_s = self._events.time() + self.config.limits.request_timeout_s
        lane = self._next_lane()
        answers = Answers(
            ask, texts, lambda: self._engine.alive and lane.fault() is None, updates, deadline_s
        )
        try:
            for request in ask.requests:
                self._updates[request.request_id] = updates
                if lane.fault() or not self._engine.submit(request, lane.name, watch=ask.stream):
                    raise NotReadyError("The engine has stopped; try again in a moment.")
            yield answers
        finally:
            for request_id in answers.unfinished:
                self._engine.cancel(request_id)
            for request in ask.requests:
                self._updates.pop(request.request_id, None)
            self.account.add(answers)
            self._watch_canary(lane, answers)

    def _next_lane(self) -> Lane:
        if self._candidate and (reason := self._candidate.fault()):
            self._end_canary(Decision(word="roll_back", reason=reason))
        return self._candidate if self._candidate and self._canary.takes_next() else self._live

    async def swap(self, draft: DraftConfig | None) -> None:
        """Try another drafter on a share of the traffic; it takes over or is taken back by what it does.

        Raises:
            ArtifactError: There is no such drafter. The live one goes on.
            EngineError: The engine cannot draft like that. The live one goes on.
        """
        if draft == (self._candidate or self._live).draft:
            return
        lane = await asyncio.to_thread(self._open_lane, draft)
        self._lanes.append(lane)
        if self._candidate:
            self._end_canary(Decision(word="roll_back", reason="another drafter was swapped in"))
        self._engine.open_lane(lane.name, lane.stream)
        self._candidate, self._canary = lane, Canary(self.config.canary)

    def _watch_canary(self, lane: Lane, answers: Answers) -> None:
        """Count what a request did for the trial under way, and end the trial if it is decided."""
        if self._candidate is None or lane not in (self._live, self._candidate):
            return
        of_candidate = lane is self._candidate
        (self._canary.candidate if of_candidate else self._canary.live).add(answers.cycles)
        if of_candidate:
            for request, choice in zip(answers.ask.requests, answers.choices, strict=True):
                if choice.outcome is not None and request.sampling.greedy:
                    task = asyncio.ensure_future(self._shadow(request, choice.ids))
                    self._shadows.add(task)
                    task.add_done_callback(self._shadows.discard)
        self._decide()

    async def _shadow(self, request: GenerationRequest, answer_ids: tuple[int, ...]) -> None:
        """Ask the live drafter what the new one was asked, and compare."""
        canary, updates = self._canary, asyncio.Queue[Update]()
        shadow = replace(request, request_id=f"shadow-{request.request_id}", log_probabilities=None)
        self._updates[shadow.request_id] = updates
        try:
            if self._engine.submit(shadow, self._live.name, watch=False):
                outcome = (await updates.get()).outcome
                if isinstance(outcome, Generation) and canary is self._canary:
                    canary.compare(outcome.answer_ids == answer_ids)
                    self._decide()
        finally:
            del self._updates[shadow.request_id]

    def _decide(self) -> None:
        if self._candidate and (decision := self._canary.decide()).word != "wait":
            self._end_canary(decision)

    def _end_canary(self, decision: Decision) -> None:
        assert self._candidate is not None
        kept, gone = self._live, self._candidate
        if decision.word == "promote":
            kept, gone = gone, kept
        self.swaps.append(f"{decision.word} {self._candidate.name}: {decision.reason}")
        log.warning("drafter %s", self.swaps[-1])
        self._live, self._candidate = kept, None
        self._engine.close_lane(gone.name, lambda: self._close_lane(gone))

    def _close_lane(self, lane: Lane) -> None:
        lane.close()
        self._lanes.remove(lane)

    def replies(self, ask: Ask) -> Replies:
        """What writes the answers of a request."""
        return Replies(ask, self.config.model, self._chat.decode)

    def close(self) -> None:
        """Stop the engine's thread and what lanes run on, and write what was captured."""
        self._engine.close()
        for lane in list(self._lanes):
            lane.close()
        if self.capture:
            self.capture.flush()

    def _deliver(self, updates: list[Update]) -> None:
        """Carry updates from the engine's thread into the event loop."""
        for update in updates:
            if isinstance(update.outcome, FailedRequest):
                log.error("request %s failed: %s", update.request_id, update.outcome.reason)
        if self._events is not None and not self._events.is_closed():
            self._events.call_soon_threadsafe(self._dispatch, updates)

    def _dispatch(self, updates: list[Update]) -> None:
        for update in updates:
            if (queue := self._updates.get(update.request_id)) is not None:
                queue.put_nowait(update)

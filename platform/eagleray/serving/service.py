"""One served engine: admits requests within its limits, answers them, keeps account."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from eagleray.corpus.answer_text import AnswerText
from eagleray.corpus.chat import ChatTemplate
from eagleray.engines.base import FailedRequest, RequestStream
from eagleray.serving.account import Account
from eagleray.serving.answers import Answers
from eagleray.serving.asks import Ask, Asking
from eagleray.serving.config import ServeConfig
from eagleray.serving.health import Health, judge_health
from eagleray.serving.loop import EngineLoop, Update
from eagleray.serving.refusals import BusyError, NotReadyError
from eagleray.serving.replies import Replies

log = logging.getLogger(__name__)


class Service:
    """Everything of a server but HTTP. Its coroutines run in one event loop.

    Args:
        stream: Of the engine, with or without a drafter; from here on the service's alone.
        context_window_tokens: Prompt and answer together, as clients are told.
    """

    def __init__(
        self,
        config: ServeConfig,
        stream: RequestStream,
        chat: ChatTemplate,
        context_window_tokens: int,
    ):
        self.config = config
        self.context_window_tokens = context_window_tokens
        self.started_at = int(time.time())
        self.asking = Asking(chat, config.model, config.limits)
        self.account = Account(config.health.window_cycles)
        self._chat = chat
        self._room = config.engine.concurrency + config.limits.max_queued_requests
        self._updates: dict[str, asyncio.Queue[Update]] = {}
        """Where the updates of an unfinished request go."""
        self._events: asyncio.AbstractEventLoop | None = None
        self._engine = EngineLoop(stream, self._deliver)

    @property
    def health(self) -> Health:
        """How the engine fares."""
        return judge_health(
            self.config.health,
            alive=self._engine.alive,
            idle_s=self._engine.idle_s,
            draft=self.config.draft,
            recent=self.account.recent,
        )

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
        answers = Answers(ask, texts, self._engine, updates, deadline_s)
        try:
            for request in ask.requests:
                self._updates[request.request_id] = updates
                if not self._engine.submit(request, watch=ask.stream):
                    raise NotReadyError("The engine has stopped; try again in a moment.")
            yield answers
        finally:
            for request_id in answers.unfinished:
                self._engine.cancel(request_id)
            for request in ask.requests:
                self._updates.pop(request.request_id, None)
            self.account.add(answers)

    def replies(self, ask: Ask) -> Replies:
        """What writes the answers of a request."""
        return Replies(ask, self.config.model, self._chat.decode)

    def close(self) -> None:
        """Stop the engine's thread."""
        self._engine.close()

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

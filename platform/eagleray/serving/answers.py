"""The answers of one request as they grow: pieces of text for a stream, and the account at the end."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from eagleray.corpus.answer_text import AnswerText
from eagleray.engines.base import FinishReason, Generation
from eagleray.serving.asks import Ask
from eagleray.serving.loop import RejectedRequest, Update
from eagleray.serving.refusals import EngineFailedError, NotReadyError, RefusalError, TimedOutError
from eagleray.speculation.acceptance import Cycle


@dataclass(frozen=True, kw_only=True)
class Piece:
    """What one cycle added to one choice."""

    index: int
    text: str
    ids: tuple[int, ...]
    finish_reason: FinishReason | None
    """Set in the last piece of a choice."""


class Choice:
    """One growing answer."""

    def __init__(self, index: int, text: AnswerText):
        self.index = index
        self.content = ""
        self.ids: tuple[int, ...] = ()
        self.outcome: Generation | None = None
        """Set when the answer is whole."""
        self._text = text
        self._told = 0

    @property
    def cycles(self) -> tuple[Cycle, ...]:
        """How the answer came about; known at its end."""
        return self.outcome.cycles if self.outcome else ()

    def take(self, update: Update) -> Piece | None:
        """Grow by what came; None where nothing shows."""
        shown = self._text.push(update.ids)
        self.ids += update.ids
        if isinstance(update.outcome, Generation):
            self.outcome = update.outcome
            shown += self._text.finish()
        self.content += shown
        if not shown and self.outcome is None:
            return None
        # Ids whose text was held back go with the piece that shows it.
        untold, self._told = self.ids[self._told :], len(self.ids)
        reason = self.outcome.finish_reason if self.outcome else None
        return Piece(index=self.index, text=shown, ids=untold, finish_reason=reason)


class Answers:
    """All choices of one request.

    Args:
        alive: Whether what answers still runs.
        updates: What the engine's thread tells of these requests.
        deadline_s: On the event loop's clock.
    """

    def __init__(
        self,
        ask: Ask,
        texts: list[AnswerText],
        alive: Callable[[], bool],
        updates: "asyncio.Queue[Update]",
        deadline_s: float,
    ):
        self.ask = ask
        self.choices = [Choice(index, text) for index, text in enumerate(texts)]
        self._alive = alive
        self._updates = updates
        self._deadline_s = deadline_s
        self._open = {
            request.request_id: choice for request, choice in zip(ask.requests, self.choices, strict=True)
        }

    @property
    def completion_tokens(self) -> int:
        """Emitted ids of all choices."""
        return sum(len(choice.ids) for choice in self.choices)

    @property
    def lossy(self) -> bool:
        """Whether drafting was allowed to change the distribution of an answer."""
        return any(choice.outcome.lossy for choice in self.choices if choice.outcome)

    @property
    def reused_prompt_tokens(self) -> int:
        """Prompt tokens that were copied from earlier prompts; of several answers to one prompt, the
        first's."""
        reused: dict[tuple[int, ...], int] = {}
        for choice in self.choices:
            if choice.outcome:
                reused.setdefault(choice.outcome.prompt_ids, choice.outcome.reused_prompt_tokens)
        return sum(reused.values())

    @property
    def cycles(self) -> tuple[Cycle, ...]:
        """Cycles of all choices."""
        return tuple(cycle for choice in self.choices for cycle in choice.cycles)

    @property
    def unfinished(self) -> tuple[str, ...]:
        """Ids of the engine's requests that have not ended."""
        return tuple(self._open)

    async def pieces(self) -> AsyncIterator[list[Piece]]:
        """Yield what came together, one cycle or as many as a slow reader has missed, until every choice has
        ended.

        Raises:
            RefusalError: The engine cannot serve a request, failed on one, or took too long.
        """
        while self._open:
            updates = [await self._next()]
            while not self._updates.empty():
                updates.append(self._updates.get_nowait())
            if pieces := [piece for update in updates if (piece := self._take(update)) is not None]:
                yield pieces

    def _take(self, update: Update) -> Piece | None:
        choice = self._open[update.request_id]
        self._require_answer(update)
        piece = choice.take(update)
        if choice.outcome:
            del self._open[update.request_id]
        return piece

    async def _next(self) -> Update:
        try:
            async with asyncio.timeout_at(self._deadline_s):
                return await self._updates.get()
        except TimeoutError:
            raise TimedOutError(
                "The answer was not whole within the time that a request may take; ask for fewer tokens, or "
                "for a stream."
            ) from None

    def _require_answer(self, update: Update) -> None:
        outcome = update.outcome
        if outcome is None or isinstance(outcome, Generation):
            return
        if isinstance(outcome, RejectedRequest) or outcome.refused:
            raise RefusalError(outcome.reason, code="request_not_possible")
        if not self._alive():
            raise NotReadyError("The engine has stopped; try again in a moment.")
        raise EngineFailedError("The engine could not finish this answer; its log has the reason.")

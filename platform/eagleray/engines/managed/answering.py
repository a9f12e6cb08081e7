"""One request to a server that we started, and its answer as it grows."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable
from http import HTTPStatus
from itertools import accumulate
from typing import Any

import aiohttp

from eagleray.corpus.answer_text import AnswerText, Decode
from eagleray.engines.base import FailedRequest, Generation, GenerationRequest
from eagleray.engines.limits import RequestLimits, refuse_shaping
from eagleray.engines.managed.dialogues import Dialogue
from eagleray.engines.openai.stream import Tell
from eagleray.engines.process import ServerProcess
from eagleray.engines.served import StepCounts
from eagleray.speculation.acceptance import Cycle, cut_cycles

SETTLE_S = 3.0
SHOWN_CHARACTERS = 500
"""Length to which a server's own words are cut."""


class ManagedAnswering:
    """Asks without a second try: a server of ours that does not answer is broken.

    Args:
        show: Text of ids, for stop strings.
        drafts: Whether the server was given something to draft with. If not, every token is a cycle.
    """

    def __init__(
        self,
        server: ServerProcess,
        dialogue: Dialogue,
        session: aiohttp.ClientSession,
        limits: RequestLimits,
        stop_ids: tuple[int, ...],
        show: Decode,
        *,
        drafts: bool,
    ):
        self._server = server
        self._dialogue = dialogue
        self._session = session
        self._limits = limits
        self._stop_ids = stop_ids
        self._show = show
        self._drafts = drafts

    def check(self, request: GenerationRequest) -> None:
        """Refuse what cannot be asked.

        Raises:
            EngineError: See `RequestLimits.check_request`; or the engine does not shape answers like that.
        """
        self._limits.check_request(request)
        refuse_shaping(request, self._server.name, self._dialogue.shapes)

    async def answer(self, request: GenerationRequest, tell: Tell) -> Generation | FailedRequest:
        """Ask, and tell ids as they come."""
        try:
            return await self._read(request, tell)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            reason = f"{self._server.name} broke off its answer ({type(error).__name__}: {error})"
        except (KeyError, TypeError, ValueError) as error:
            reason = (
                f"{self._server.name} answered in an unknown form ({type(error).__name__}: {error}); run "
                "`python -m jobs.doctor` on its environment"
            )
        await self._settled()
        return FailedRequest(request_id=request.request_id, reason=f"{reason}.{self._server.log_end()}")

    async def _settled(self) -> None:
        """Return once it is known whether the server has ended: its connections go before its process."""
        deadline_s = time.monotonic() + SETTLE_S
        while self._server.ended is None and time.monotonic() < deadline_s:
            await asyncio.sleep(0.05)

    async def _read(self, request: GenerationRequest, tell: Tell) -> Generation | FailedRequest:
        body = self._dialogue.body(request, self._limits.room(request), self._stop_ids)
        text = AnswerText(self._show, request.prompt_ids, request.stop_strings)
        ids: list[int] = []
        received = 0
        reason: str | None = None
        counts: StepCounts | None = None
        async with self._session.post(self._server.url + self._dialogue.path, json=body) as response:
            if response.status != HTTPStatus.OK:
                said = (await response.text())[:SHOWN_CHARACTERS]
                told = f"{self._server.name} refused a request with HTTP {response.status}: {said}"
                if not (refused := response.status == HTTPStatus.BAD_REQUEST):
                    await self._settled()
                return FailedRequest(request_id=request.request_id, reason=told, refused=refused)
            async for content in _contents(response):
                event = self._dialogue.read(content, received)
                received += len(event.ids)
                new = _until_stopped(text, event.ids)
                ids += new
                if new:
                    tell(tuple(new))
                reason = event.finish_reason or reason
                counts = event.counts or counts
        if text.stopped_by is None and reason not in ("stop", "length"):
            raise ValueError(f"an answer of {len(ids)} tokens that ends with {reason!r}")
        return Generation(
            request_id=request.request_id,
            prompt_ids=request.prompt_ids,
            answer_ids=tuple(ids),
            finish_reason="length" if text.stopped_by is None and reason == "length" else "stop",
            cycles=self._cycles(counts, len(ids), stopped=text.stopped_by is not None),
            stop_string=text.stopped_by,
        )

    def _cycles(self, counts: StepCounts | None, answer_tokens: int, *, stopped: bool) -> tuple[Cycle, ...]:
        if not self._drafts:
            return cut_cycles((), (), answer_tokens=answer_tokens)
        if counts is None:
            return ()
        drafted, accepted = counts
        if stopped:
            # Engines look for a stop string after a step, and another one may be under way then.
            ends = accumulate((agreed + 1 for agreed in accepted), initial=0)
            steps = sum(end < answer_tokens - 1 for end in list(ends)[:-1])
            drafted, accepted = drafted[:steps], accepted[:steps]
        return cut_cycles(drafted, accepted, answer_tokens=answer_tokens)


async def _contents(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """The events of a stream."""
    async for line in response.content:
        data = line.decode().strip().removeprefix("data:").strip()
        if data and data != "[DONE]":
            content: dict[str, Any] = json.loads(data)
            if "error" in content:
                raise ValueError(str(content["error"])[:SHOWN_CHARACTERS])
            yield content


def _until_stopped(text: AnswerText, ids: Iterable[int]) -> list[int]:
    """Ids up to the one that completes a stop string."""
    kept: list[int] = []
    for token_id in ids:
        if text.stopped_by is not None:
            break
        text.push((token_id,))
        kept.append(token_id)
    return kept

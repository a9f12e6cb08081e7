"""One request and its answer: what may be asked, who is at fault when none comes, and which ids came."""

import dataclasses
from collections.abc import Sequence
from typing import Protocol

from eagleray.corpus.prompt import AnswerOrigin
from eagleray.engines.base import CapturedFeatures, FailedRequest, Generation, GenerationRequest
from eagleray.engines.limits import RequestLimits, refuse_shaping
from eagleray.engines.openai.client import SHOWN_CHARACTERS, RefusalError, ServerClient, ServerFaultError
from eagleray.engines.openai.dialects import ServerAnswer
from eagleray.engines.openai.retokenise import Retokeniser
from eagleray.engines.openai.server import Server, ask, unreachable
from eagleray.engines.openai.stream import Tell
from eagleray.errors import EngineError


class FeatureReader(Protocol):
    """Takes what a server captured of an answer."""

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers (outputs, 0-based) whose features it gives."""
        ...

    async def take(self, path: str | None, ids: Sequence[int]) -> CapturedFeatures:
        """Features of prompt and answer, from where the server says that it put them.

        Raises:
            EngineError: They are not there, or of something else.
        """
        ...


class Answering:
    """Lets a server answer requests.

    Args:
        probe: A request that any working server answers; it tells a bad request from a server that is down.
        features: Reads what the server captures of every answer; None where it captures nothing.
    """

    def __init__(
        self,
        client: ServerClient,
        server: Server,
        limits: RequestLimits,
        stop_ids: tuple[int, ...],
        retokeniser: Retokeniser,
        probe: GenerationRequest,
        features: FeatureReader | None = None,
    ):
        self._client = client
        self._server = server
        self._limits = limits
        self._stop_ids = stop_ids
        self._retokeniser = retokeniser
        self._probe = probe
        self._features = features

    def check(self, request: GenerationRequest) -> None:
        """Refuse what cannot be asked.

        Raises:
            EngineError: See `RequestLimits.check_request`; or it is shaped beyond sampling, or the server
                knows no such sampling.
        """
        self._limits.check_request(request)
        refuse_shaping(request, "an engine over HTTP")
        sampling = request.sampling
        if (sampling.top_k is not None or sampling.min_p) and not self._server.dialect.filters:
            raise EngineError(
                f"Request {request.request_id!r} samples with top_k {sampling.top_k} and min_p "
                f"{sampling.min_p}, which only vLLM and SGLang know; the server at {self._client.config.url} "
                "is neither. Leave both out of the sampling settings."
            )

    async def answer(self, request: GenerationRequest, tell: Tell) -> Generation | FailedRequest:
        """Ask until there is an answer or a reason. Nothing is told: a further try may give other ids.

        Raises:
            EngineError: The server answers nothing any more.
        """
        room = self._limits.room(request)
        try:
            told = await ask(self._client, self._server, request, room, self._stop_ids)
            generation = self._generation(request, told, room)
        except RefusalError as refusal:
            return _failed(request, str(refusal))
        except ServerFaultError as fault:
            await self._require_alive(fault)
            return _failed(request, f"{fault}, though the server answers other requests")
        if self._features is None:
            return generation
        ids = (*generation.prompt_ids, *generation.answer_ids)
        captured = await self._features.take(told.hidden_states_path, ids)
        return dataclasses.replace(generation, captured=captured)

    async def _require_alive(self, last_fault: ServerFaultError) -> None:
        """After all tries of a request failed: does the server answer anything?"""
        try:
            await ask(self._client, self._server, self._probe, 1, self._stop_ids, patient=False)
        except (ServerFaultError, RefusalError):
            raise unreachable(self._client, str(last_fault)) from None

    def _generation(self, request: GenerationRequest, told: ServerAnswer, room: int) -> Generation:
        if told.token_ids is None:
            ids, agrees = self._retokeniser.ids(request.prompt_ids, told)
            origin: AnswerOrigin = "retokenised" if agrees else "mismatched"
        else:
            ids, origin = told.token_ids, "target"
            self._require_ids(ids, told, room)
        return Generation(
            request_id=request.request_id,
            prompt_ids=request.prompt_ids,
            answer_ids=ids,
            finish_reason=told.finish_reason,
            cycles=(),
            origin=origin,
        )

    def _require_ids(self, ids: tuple[int, ...], told: ServerAnswer, room: int) -> None:
        """Check emitted ids against how the answer is said to have ended."""
        if len(ids) > room:
            raise RefusalError(f"the server gave {len(ids)} tokens; {room} were asked for")
        if told.finish_reason == "stop" and (not ids or ids[-1] not in self._stop_ids):
            raise RefusalError(
                f"the server ended the answer with id {ids[-1:]}, which is no stop token of the target "
                f"{self._stop_ids}: it was told of other ones, or runs another model"
            )


def _failed(request: GenerationRequest, reason: str) -> FailedRequest:
    return FailedRequest(request_id=request.request_id, reason=reason[:SHOWN_CHARACTERS])

"""How each kind of server is asked for an answer, and how it tells one.

Every sampling setting is sent, so no default of the server or of the target's generation_config.json
takes part. vLLM and SGLang give the ids they emitted, the stop token included.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from pydantic import BaseModel, Field

from eagleray.engines.base import FinishReason, GenerationRequest
from eagleray.engines.openai.client import RefusalError, ServerFaultError

_NEUTRAL = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
_KEEP_ALL = -1
"""The value of top_k that filters nothing, in every version of vLLM and SGLang."""


@dataclass(frozen=True, kw_only=True)
class ServerAnswer:
    """What a server says of one answer."""

    text: str
    finish_reason: FinishReason
    token_ids: tuple[int, ...] | None
    """Emitted ids; None where the server does not tell them."""
    completion_tokens: int | None
    """How many tokens the server counted."""
    pieces: tuple[str, ...] | None
    """The text of each emitted token, where log probabilities were offered."""
    hidden_states_path: str | None = None
    """Where the server writes what its layers computed, if it was asked to."""


class _LogProbabilities(BaseModel):
    tokens: tuple[str, ...] | None = None


class _Choice(BaseModel):
    text: str
    finish_reason: str | None
    token_ids: tuple[int, ...] | None = None
    logprobs: _LogProbabilities | None = None


class _Usage(BaseModel):
    completion_tokens: int | None = None


class _Transfer(BaseModel):
    hidden_states_path: str | None = None


class _Completion(BaseModel):
    """The body of `/v1/completions`."""

    choices: tuple[_Choice, ...] = Field(min_length=1)
    usage: _Usage | None = None
    kv_transfer_params: _Transfer | None = None

    def answer(self) -> ServerAnswer:
        choice = self.choices[0]
        return ServerAnswer(
            text=choice.text,
            finish_reason=_finish_reason(choice.finish_reason),
            token_ids=choice.token_ids,
            completion_tokens=self.usage.completion_tokens if self.usage else None,
            pieces=choice.logprobs.tokens if choice.logprobs else None,
            hidden_states_path=self.kv_transfer_params.hidden_states_path
            if self.kv_transfer_params
            else None,
        )


class _Finish(BaseModel):
    type: str
    message: str = ""


class _MetaInfo(BaseModel):
    finish_reason: _Finish | None
    completion_tokens: int | None = None


class _Generated(BaseModel):
    """The body of SGLang's `/generate`."""

    text: str
    output_ids: tuple[int, ...]
    meta_info: _MetaInfo

    def answer(self) -> ServerAnswer:
        finish = self.meta_info.finish_reason
        return ServerAnswer(
            text=self.text,
            finish_reason=_finish_reason(finish.type if finish else None),
            token_ids=self.output_ids,
            completion_tokens=self.meta_info.completion_tokens,
            pieces=None,
        )


class Dialect(Protocol):
    """One kind of server."""

    kind: ClassVar[str]
    path: ClassVar[str]
    filters: ClassVar[bool]
    """Whether it knows top_k and min_p."""

    def body(
        self, request: GenerationRequest, model: str, max_tokens: int, stop_ids: tuple[int, ...]
    ) -> dict[str, Any]:
        """The body that asks for an answer of at most `max_tokens` tokens."""
        ...

    def read(self, content: bytes) -> ServerAnswer:
        """The answer in the body of a response.

        Raises:
            RefusalError: The server filtered the answer.
            ServerFaultError: The answer broke off.
            ValidationError: The body is not one of this route.
        """
        ...


@dataclass(frozen=True)
class PlainDialect:
    """What every server with OpenAI's completions route understands, and no field more."""

    kind: ClassVar[str] = "plain"
    path: ClassVar[str] = "/v1/completions"
    filters: ClassVar[bool] = False

    asks_log_probabilities: bool = True
    """Their tokens show whether the text was tokenised again as it was emitted."""

    def body(
        self, request: GenerationRequest, model: str, max_tokens: int, stop_ids: tuple[int, ...]
    ) -> dict[str, Any]:
        sampling = request.sampling
        return {
            "model": model,
            "prompt": list(request.prompt_ids),
            "max_tokens": max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            **({} if sampling.greedy else {"seed": request.seed}),
            **({"logprobs": 1} if self.asks_log_probabilities else {}),
        }

    def read(self, content: bytes) -> ServerAnswer:
        return _Completion.model_validate_json(content).answer()


class VllmDialect:
    """vLLM's extensions of the completions route."""

    kind: ClassVar[str] = "vllm"
    path: ClassVar[str] = "/v1/completions"
    filters: ClassVar[bool] = True

    def body(
        self, request: GenerationRequest, model: str, max_tokens: int, stop_ids: tuple[int, ...]
    ) -> dict[str, Any]:
        return {
            **PlainDialect(asks_log_probabilities=False).body(request, model, max_tokens, stop_ids),
            **_NEUTRAL,
            "top_k": request.sampling.top_k or _KEEP_ALL,
            "min_p": request.sampling.min_p,
            "stop_token_ids": list(stop_ids),
            "skip_special_tokens": False,
            "return_token_ids": True,
        }

    def read(self, content: bytes) -> ServerAnswer:
        return _Completion.model_validate_json(content).answer()


class CapturingVllmDialect(VllmDialect):
    """A vLLM that was started to write hidden states: of prompt and answer, all but the last token, at which
    nothing is ever computed."""

    def body(
        self, request: GenerationRequest, model: str, max_tokens: int, stop_ids: tuple[int, ...]
    ) -> dict[str, Any]:
        body = super().body(request, model, max_tokens, stop_ids)
        return {**body, "kv_transfer_params": {"include_output_tokens": True}}


class SglangDialect:
    """SGLang's own route: its completions route does not tell ids."""

    kind: ClassVar[str] = "sglang"
    path: ClassVar[str] = "/generate"
    filters: ClassVar[bool] = True

    def body(
        self, request: GenerationRequest, model: str, max_tokens: int, stop_ids: tuple[int, ...]
    ) -> dict[str, Any]:
        sampling = request.sampling
        settings = {
            "max_new_tokens": max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or _KEEP_ALL,
            "min_p": sampling.min_p,
            **_NEUTRAL,
            **({} if sampling.greedy else {"sampling_seed": request.seed}),
            "stop_token_ids": list(stop_ids),
            "skip_special_tokens": False,
        }
        return {"input_ids": list(request.prompt_ids), "sampling_params": settings}

    def read(self, content: bytes) -> ServerAnswer:
        return _Generated.model_validate_json(content).answer()


def _finish_reason(told: str | None) -> FinishReason:
    if told == "stop":
        return "stop"
    if told == "length":
        return "length"
    if told == "content_filter":
        raise RefusalError("the server filtered the answer")
    raise ServerFaultError(f"an answer that broke off (finish reason {told!r})")

"""From a client's request to the engine's: rendered, tokenised, with a seed and an id for every answer."""

import random
from dataclasses import dataclass
from typing import Literal

from eagleray.corpus.chat import ChatTemplate, RenderError
from eagleray.corpus.prompt import Message
from eagleray.engines.base import GenerationRequest
from eagleray.serving.config import LimitsConfig
from eagleray.serving.refusals import RefusalError, UnknownModelError
from eagleray.serving.requests import MAX_TOKENS, ChatRequest, CompletionRequest, Generate
from eagleray.speculation.config import SamplingConfig

Kind = Literal["chat", "completion"]


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One HTTP request as the engine's requests: one for each choice, in the order of their indices."""

    answer_id: str
    kind: Kind
    requests: tuple[GenerationRequest, ...]
    prompt_tokens: int
    """Every prompt counted once, however many choices it has."""
    stream: bool
    include_usage: bool
    return_token_ids: bool
    return_cycles: bool


class Asking:
    """Makes requests of one target's engine.

    Args:
        model: The one name that clients may ask for.
    """

    def __init__(self, chat: ChatTemplate, model: str, limits: LimitsConfig):
        self._chat = chat
        self._model = model
        self._limits = limits

    def chat(self, request: ChatRequest) -> Ask:
        """Render the turns with the target's chat template.

        Raises:
            RefusalError: The template cannot show them, or a limit is exceeded.
        """
        self._check(request)
        messages = [Message(_role(turn.role), turn.text, name=turn.name) for turn in request.messages]
        try:
            text = self._chat.ask(messages)
        except RenderError as error:
            raise RefusalError(f"messages: {error}.", param="messages") from None
        return self._ask(request, "chat", "chatcmpl", [self._chat.encode(text)], request.new_tokens)

    def completion(self, request: CompletionRequest) -> Ask:
        """Take prompts as they are.

        Raises:
            RefusalError: A limit is exceeded.
        """
        self._check(request)
        prompts = [
            self._chat.encode(prompt) if isinstance(prompt, str) else tuple(prompt)
            for prompt in request.prompts
        ]
        return self._ask(request, "completion", "cmpl", prompts, request.new_tokens)

    def _check(self, request: Generate) -> None:
        if request.model is not None and request.model != self._model:
            raise UnknownModelError(
                f"This server serves the model {self._model!r}; another one was asked for.",
                param="model",
                code="model_not_found",
            )
        limits = self._limits
        if len(request.stop) > limits.max_stop_strings:
            raise RefusalError(
                f"stop: {len(request.stop)} stop strings; at most {limits.max_stop_strings} are allowed.",
                param="stop",
            )
        longest = max(map(len, request.stop), default=0)
        if longest > limits.max_stop_characters:
            raise RefusalError(
                f"stop: a stop string of {longest} characters; at most {limits.max_stop_characters} are "
                "allowed.",
                param="stop",
            )

    def _ask(
        self,
        request: Generate,
        kind: Kind,
        prefix: str,
        prompts: list[tuple[int, ...]],
        new_tokens: int | None,
    ) -> Ask:
        if (choices := len(prompts) * request.n) > self._limits.max_choices:
            raise RefusalError(
                f"n: {choices} answers are asked for; one request may ask for {self._limits.max_choices}.",
                param="n",
            )
        answer_id = f"{prefix}-{random.getrandbits(96):024x}"
        seed = random.getrandbits(62) if request.seed is None else request.seed
        sampling = SamplingConfig(
            temperature=request.temperature, top_k=request.top_k, top_p=request.top_p, min_p=request.min_p
        )
        adjustments = request.adjustments
        requests = tuple(
            GenerationRequest(
                request_id=f"{answer_id}-{place * request.n + choice}",
                prompt_ids=prompt_ids,
                max_new_tokens=MAX_TOKENS if new_tokens is None else new_tokens,
                sampling=sampling,
                # Every choice draws its own numbers; the first one those of the seed that was given.
                seed=seed + choice,
                stop_strings=tuple(request.stop),
                adjustments=adjustments,
                draft_depth=request.draft_depth,
                log_probabilities=request.log_probabilities,
            )
            for place, prompt_ids in enumerate(prompts)
            for choice in range(request.n)
        )
        return Ask(
            answer_id=answer_id,
            kind=kind,
            requests=requests,
            prompt_tokens=sum(map(len, prompts)),
            stream=request.stream,
            include_usage=request.include_usage,
            return_token_ids=request.return_token_ids,
            return_cycles=request.return_cycles,
        )


def _role(role: str) -> str:
    """The name that chat templates know: `developer` is OpenAI's new word for `system`."""
    return "system" if role == "developer" else role

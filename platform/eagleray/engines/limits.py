"""What any engine can be asked for."""

from collections.abc import Collection
from dataclasses import dataclass

from eagleray.engines.base import GenerationRequest
from eagleray.errors import EngineError


@dataclass(frozen=True, kw_only=True)
class RequestLimits:
    """Bounds of one request."""

    vocab_size: int
    context_window_tokens: int
    """Prompt and answer together never exceed this."""

    def room(self, request: GenerationRequest) -> int:
        """Tokens that may be emitted for a request."""
        return min(request.max_new_tokens, self.context_window_tokens - len(request.prompt_ids))

    def check_request(self, request: GenerationRequest) -> None:
        """Refuse what cannot be served.

        Raises:
            EngineError: The prompt is empty, leaves no room in the context window or holds an unknown
                id, or no token is asked for.
        """
        prompt = request.prompt_ids
        if not prompt:
            raise EngineError(
                f"Request {request.request_id!r} has an empty prompt; expected at least one token."
            )
        if len(prompt) >= self.context_window_tokens:
            raise EngineError(
                f"Request {request.request_id!r} has a prompt of {len(prompt)} tokens; the context window of "
                f"{self.context_window_tokens} must hold at least one more. Shorten the prompt."
            )
        if request.max_new_tokens < 1:
            raise EngineError(
                f"Request {request.request_id!r} asks for {request.max_new_tokens} new tokens; "
                "expected at least 1. Raise max_new_tokens."
            )
        if not 0 <= min(prompt) <= max(prompt) < self.vocab_size:
            raise EngineError(
                f"Request {request.request_id!r} holds ids from {min(prompt)} to {max(prompt)}; the target's "
                f"vocabulary is 0 to {self.vocab_size - 1}. Encode the prompt with the tokenizer of this "
                "target."
            )


def refuse_shaping(request: GenerationRequest, engine: str, does: Collection[str] = ()) -> None:
    """Refuse what only the native engine does, rather than answer as if it had not been asked.

    Args:
        engine: What refuses, for the message.
        does: Fields of a request that this engine knows after all.

    Raises:
        EngineError: The request names stop strings, adjustments, log probabilities or a draft depth.
    """
    asked = {
        "stop_strings": bool(request.stop_strings),
        "adjustments": request.adjustments is not None,
        "log_probabilities": request.log_probabilities is not None,
        "draft_depth": request.draft_depth is not None,
    }
    names = [name for name, is_asked in asked.items() if is_asked and name not in does]
    if names:
        raise EngineError(
            f"Request {request.request_id!r} asks for {', '.join(names)}, which {engine} does not do. "
            "Leave it out, or use the native engine."
        )

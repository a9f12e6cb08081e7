"""What the native engine can be asked for."""

from dataclasses import dataclass

from eagleray.engines.base import DraftSetting, GenerationRequest
from eagleray.engines.native.config import NativeEngineConfig
from eagleray.errors import EngineError
from eagleray.targets.geometry import TargetGeometry


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds that come from the target and from the settings."""

    num_layers: int
    vocab_size: int
    context_window_tokens: int
    """Prompt and answer together never exceed this."""

    @classmethod
    def of(cls, geometry: TargetGeometry, config: NativeEngineConfig) -> "Limits":
        """The window is the smallest of the setting, the target's positions and its sliding window,
        beyond which full attention would no longer be what the target does."""
        windows = (
            config.context_window_tokens,
            geometry.sliding_window,
            geometry.max_position_embeddings,
        )
        return cls(
            num_layers=geometry.num_layers,
            vocab_size=geometry.vocab_size,
            context_window_tokens=min(window for window in windows if window is not None),
        )

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
        if not request.sampling.greedy:
            raise EngineError(
                f"Request {request.request_id!r} asks for temperature {request.sampling.temperature}; the "
                "native engine decodes greedily. Set sampling.temperature to 0."
            )

    def check_layers(self, layers: tuple[int, ...]) -> None:
        """Refuse layers to tap that the target does not have.

        Raises:
            EngineError: They are not strictly increasing layer numbers.
        """
        if list(layers) != sorted(set(layers) & set(range(self.num_layers))):
            raise EngineError(
                f"Feature layers {layers} were asked of a target of {self.num_layers} layers; "
                f"expected strictly increasing numbers from 0 to {self.num_layers - 1}."
            )

    def check_draft(self, draft: DraftSetting) -> None:
        """Refuse a drafter that does not fit.

        Raises:
            EngineError: It cannot draft that deep, or taps layers that the target does not have.
        """
        self.check_layers(draft.source.tapped_layers)
        if not 1 <= draft.depth <= (draft.source.max_depth or draft.depth):
            raise EngineError(
                f"Draft depth is {draft.depth}; this drafter drafts at least 1 and at most "
                f"{draft.source.max_depth or 'any number of'} tokens per cycle. Change the depth."
            )

"""What the native engine can be asked for."""

from dataclasses import dataclass

from eagleray.engines.base import DraftSetting, GenerationRequest
from eagleray.engines.limits import RequestLimits
from eagleray.engines.native.config import NativeEngineConfig
from eagleray.errors import EngineError
from eagleray.targets.geometry import TargetGeometry


@dataclass(frozen=True, kw_only=True)
class Limits(RequestLimits):
    """Bounds that come from the target and from the settings."""

    num_layers: int

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

    def check_request(self, request: GenerationRequest) -> None:
        """Refuse what cannot be served; see `RequestLimits.check_request`.

        Raises:
            EngineError: Also where a bias is for an unknown id, a stop string is empty, or more log
                probabilities are asked for than there are tokens.
        """
        super().check_request(request)
        unknown = [
            token
            for token in (request.adjustments.logit_bias if request.adjustments else ())
            if not 0 <= token < self.vocab_size
        ]
        if unknown:
            raise EngineError(
                f"Request {request.request_id!r} has a logit bias for id {unknown[0]}; the target's "
                f"vocabulary is 0 to {self.vocab_size - 1}."
            )
        if (request.draft_depth or 0) < 0:
            raise EngineError(
                f"Request {request.request_id!r} has a draft depth of {request.draft_depth}; expected at "
                "least 0."
            )
        if "" in request.stop_strings:
            raise EngineError(f"Request {request.request_id!r} has an empty stop string. Leave it out.")
        if not 0 <= (request.log_probabilities or 0) <= self.vocab_size:
            raise EngineError(
                f"Request {request.request_id!r} asks for {request.log_probabilities} log probabilities of "
                f"each token; expected 0 to {self.vocab_size}."
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
            EngineError: Settings exclude each other, it cannot draft that deep or draw its drafts, or taps
                layers that the target does not have.
        """
        if draft.typical is not None and (draft.drawn or draft.tree is not None):
            raise EngineError("Typical acceptance is of chains that are not drawn. Leave out drawn and tree.")
        if draft.drawn and draft.tree is not None:
            raise EngineError("Drafts are to be drawn, but trees are not. Leave out one of drawn and tree.")
        if draft.drawn and not draft.source.can_draw:
            raise EngineError(
                "Drafts are to be drawn, but this drafter has no distribution to draw from. Leave out drawn."
            )
        self.check_layers(draft.source.tapped_layers)
        if not 1 <= draft.depth <= (draft.source.max_depth or draft.depth):
            raise EngineError(
                f"Draft depth is {draft.depth}; this drafter drafts at least 1 and at most "
                f"{draft.source.max_depth or 'any number of'} tokens per cycle. Change the depth."
            )

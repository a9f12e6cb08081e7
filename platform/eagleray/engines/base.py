"""What an engine answers: requests in, emitted ids and per-cycle counts out.

The same call generates with and without a drafter; only `draft` differs. Token ids are the
currency: text enters and leaves in `corpus`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from eagleray.drafters.base import DraftSource
from eagleray.speculation.acceptance import Cycle

if TYPE_CHECKING:
    from torch import Tensor

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """One prompt to complete."""

    request_id: str
    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    """Upper bound on emitted tokens; the context window may bound it further."""


@dataclass(frozen=True, kw_only=True)
class CapturedFeatures:
    """Target features of a sequence, captured while it was generated.

    Positions 0..T-2 of the T prompt and answer tokens: nothing was ever computed at the last one.
    """

    features_TLD: "Tensor"
    final_TD: "Tensor"


@dataclass(frozen=True, kw_only=True)
class Generation:
    """What the target emitted for one request."""

    request_id: str
    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    """Emitted ids; the stop token, if one was emitted, is the last."""
    finish_reason: FinishReason
    cycles: tuple[Cycle, ...]
    """One per target verification after prefill. Plain decoding: drafted 0, delivered 1."""
    captured: CapturedFeatures | None = None


@dataclass(frozen=True, kw_only=True)
class DraftSetting:
    """How to draft: with what, and how many tokens per cycle (the draft depth, at least 1)."""

    source: DraftSource
    depth: int


@dataclass(frozen=True, kw_only=True)
class EngineTimes:
    """Where the wall time of a `generate` call went, in seconds."""

    prefill_s: float
    draft_s: float
    verify_s: float
    host_s: float

    @property
    def decode_s(self) -> float:
        """Everything but prefill."""
        return self.draft_s + self.verify_s + self.host_s


@dataclass(frozen=True, kw_only=True)
class GenerationRun:
    """All answers of one `generate` call, in the order of the requests."""

    generations: tuple[Generation, ...]
    times: EngineTimes


class Engine(Protocol):
    """Runs the target."""

    def generate(
        self,
        requests: Sequence[GenerationRequest],
        *,
        draft: DraftSetting | None = None,
        capture_layers: tuple[int, ...] | None = None,
        on_progress: Callable[[int], None] | None = None,
    ) -> GenerationRun:
        """Complete every request greedily.

        Args:
            draft: Speculate with this drafter; None is plain decoding. The ids are the same either way.
            capture_layers: Also return features of these layers (outputs, 0-based) and the final state.
            on_progress: Called after each cycle with the number of tokens it delivered.

        Raises:
            EngineError: A prompt is empty or leaves no room in the context window.
        """
        ...

"""What an engine answers: requests in, emitted ids and per-cycle counts out.

A stream takes requests at any time and returns them as they finish; `generate` is a stream over a
list. Both run with and without a drafter; only `draft` differs. Token ids are the currency: text
enters and leaves in `corpus`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from eagleray.corpus.prompt import AnswerOrigin
from eagleray.drafters.base import DraftSource
from eagleray.errors import EngineError
from eagleray.speculation.acceptance import Cycle
from eagleray.speculation.config import (
    GREEDY,
    LogitAdjustments,
    SamplingConfig,
    TreeSetting,
    TypicalAcceptance,
)

if TYPE_CHECKING:
    from torch import Tensor

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """One prompt to complete."""

    request_id: str
    """Unlike that of every unfinished request of the same stream."""
    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    """Upper bound on emitted tokens; the context window may bound it further."""
    sampling: SamplingConfig = GREEDY
    seed: int = 0
    """Drives every random choice of this request: the same request gives the same ids in any company."""
    stop_strings: tuple[str, ...] = ()
    """The answer also ends with the token that completes one of these in its text. None is empty."""
    adjustments: LogitAdjustments | None = None
    """Penalties and biases."""
    draft_depth: int | None = None
    """Most draft tokens of a cycle, 0 for none. None, and what is more than the stream drafts: as it
    drafts."""
    log_probabilities: int | None = None
    """Also tell how likely each emitted token was, and this many of the likeliest ones."""


@dataclass(frozen=True, kw_only=True)
class CapturedFeatures:
    """Target features of a sequence, captured while it was generated.

    Positions 0..T-2 of the T prompt and answer tokens: nothing was ever computed at the last one.
    """

    features_TLD: "Tensor"
    final_TD: "Tensor"


@dataclass(frozen=True, kw_only=True)
class TokenScore:
    """Log probabilities at one place of an answer, by the target alone: before temperature, filters and
    adjustments."""

    chosen: float
    """Of the emitted token."""
    likeliest: tuple[tuple[int, float], ...]
    """Ids and log probabilities, likeliest first; as many as the request asked for."""


@dataclass(frozen=True, kw_only=True)
class Generation:
    """What the target emitted for one request."""

    request_id: str
    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    """Emitted ids; the stop token, if one was emitted, is the last."""
    finish_reason: FinishReason
    cycles: tuple[Cycle, ...]
    """One per target verification after prefill. Plain decoding: drafted 0, delivered 1. Empty where the
    engine does not tell."""
    origin: AnswerOrigin = "target"
    """Whether these are the ids that the target emitted, or ids of its text."""
    stop_string: str | None = None
    """The stop string that ended the answer; its last token is the answer's."""
    lossy: bool = False
    """Whether drafting was allowed to change the distribution of this answer."""
    reused_prompt_tokens: int = 0
    """Prompt tokens that were copied from an earlier prompt instead of computed."""
    scores: tuple[TokenScore, ...] | None = None
    """One per emitted token, if the request asked for them."""
    captured: CapturedFeatures | None = None


@dataclass(frozen=True, kw_only=True)
class FailedRequest:
    """A request that the engine accepted and could not finish."""

    request_id: str
    reason: str
    refused: bool = False
    """Whether the request is at fault, by the word of a server: asked again it fails again."""


@dataclass(frozen=True, kw_only=True)
class DraftSetting:
    """How to draft: with what, and how many tokens deep in each cycle (at least 1)."""

    source: DraftSource
    depth: int
    tree: TreeSetting | None = None
    """How the draft may branch; None drafts chains."""
    drawn: bool = False
    """Draw the drafts of sampled requests from the drafter's own distribution, and accept each token with
    probability min(1, p / q). Where the drafter knows how unsure the target is, more is accepted than of its
    likeliest tokens. Answers keep the target's distribution, but a seed no longer gives the ids that it gives
    without a drafter. Chains only; greedy requests are as without."""
    typical: TypicalAcceptance | None = None
    """Accept what the target finds plausible instead of what it says. Sampled answers are then `lossy`, and
    greedy ones as ever. Chains of the likeliest tokens only."""
    adaptive: bool = False
    """`depth` is the most: every cycle drafts as deep as promises the most tokens per second, which may be
    not at all. See `speculation/depth.py`."""


@dataclass(frozen=True, kw_only=True)
class EngineTimes:
    """Where the wall time inside the calls of a stream went, in seconds."""

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


class RequestStream(Protocol):
    """Requests on their way through an engine; they may be added and withdrawn while others run."""

    @property
    def unfinished(self) -> int:
        """Submitted requests that were neither returned nor cancelled."""
        ...

    @property
    def delivered_tokens(self) -> int:
        """Tokens that cycles have delivered so far, in all requests; the first of each answer, which
        prefill yields, is not among them."""
        ...

    @property
    def times(self) -> EngineTimes:
        """The account so far."""
        ...

    def submit(self, request: GenerationRequest) -> None:
        """Queue a request.

        Raises:
            EngineError: The engine cannot serve it, or its id is that of an unfinished request. The
                stream goes on without it.
        """
        ...

    def advance(self) -> list[Generation | FailedRequest]:
        """Admit what fits, run one cycle, and return what finished, in no particular order.

        Nothing may have finished. An engine that runs elsewhere waits a moment for answers instead of
        running a cycle, so calling this until nothing is unfinished never spins.
        """
        ...

    def new_ids(self) -> dict[str, tuple[int, ...]]:
        """Ids that each running request got since the last call, for answers that are shown as they come.

        Those that a finished request got last are in its generation alone. Empty where the engine tells of
        an answer only when it is whole.
        """
        ...

    def cancel(self, request_id: str) -> None:
        """Withdraw a request and free its slot at once; `advance` will not return it.

        An id that is not unfinished is ignored: an answer may finish while its cancellation is on the way.
        """
        ...


class Engine(ABC):
    """Runs the target."""

    @abstractmethod
    def open_stream(
        self, *, draft: DraftSetting | None = None, capture_layers: tuple[int, ...] | None = None
    ) -> RequestStream:
        """Start an empty stream. Streams of one engine share nothing but the target.

        Args:
            draft: Speculate with this drafter; None is plain decoding. Greedy ids are the same either way,
                sampled ones have the same distribution.
            capture_layers: Also return features of these layers (outputs, 0-based) and the final state.

        Raises:
            EngineError: The drafter or the layers do not fit the engine.
        """

    def generate(
        self,
        requests: Sequence[GenerationRequest],
        *,
        draft: DraftSetting | None = None,
        capture_layers: tuple[int, ...] | None = None,
        on_progress: Callable[[int], None] | None = None,
    ) -> GenerationRun:
        """Complete every request of a list; see `open_stream`.

        Args:
            on_progress: Called with the number of tokens that cycles have delivered since the last call.

        Raises:
            EngineError: A request cannot be served, or the engine failed on one.
        """
        stream = self.open_stream(draft=draft, capture_layers=capture_layers)
        for request in requests:
            stream.submit(request)
        finished: dict[str, Generation] = {}
        reported_tokens = 0
        while stream.unfinished:
            for outcome in stream.advance():
                if isinstance(outcome, FailedRequest):
                    raise EngineError(
                        f"Request {outcome.request_id!r} failed in the engine: {outcome.reason}"
                    )
                finished[outcome.request_id] = outcome
            if on_progress is not None and stream.delivered_tokens > reported_tokens:
                on_progress(stream.delivered_tokens - reported_tokens)
                reported_tokens = stream.delivered_tokens
        generations = tuple(finished[request.request_id] for request in requests)
        return GenerationRun(generations=generations, times=stream.times)

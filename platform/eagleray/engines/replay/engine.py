"""The replay engine: emits stored ids through the same stream as engines that compute them."""

from itertools import islice
from pathlib import Path
from time import perf_counter

from eagleray.engines.base import (
    DraftSetting,
    Engine,
    EngineTimes,
    FailedRequest,
    Generation,
    GenerationRequest,
    RequestStream,
)
from eagleray.engines.limits import RequestLimits, refuse_shaping
from eagleray.engines.replay.answers import AnswerTable, read_answers
from eagleray.engines.replay.config import ReplayEngineConfig
from eagleray.errors import DataError, EngineError
from eagleray.targets.geometry import TargetGeometry


class ReplayEngine(Engine):
    """Runs no target.

    Args:
        target_folder: Whose limits of a request are kept; its weights are not read.

    Raises:
        DataError: The source cannot be read or holds no answer.
    """

    def __init__(self, config: ReplayEngineConfig, target_folder: Path):
        self.config = config
        geometry = TargetGeometry.read(target_folder)
        self.limits = RequestLimits(
            vocab_size=geometry.vocab_size, context_window_tokens=geometry.max_position_embeddings
        )
        self.answers = AnswerTable(read_answers(config.source))
        if not self.answers.count:
            raise DataError(f"{config.source} holds no answer to replay. Change distil.engine.source.")

    def open_stream(
        self, *, draft: DraftSetting | None = None, capture_layers: tuple[int, ...] | None = None
    ) -> RequestStream:
        """Start an empty stream.

        Raises:
            EngineError: A drafter or features are asked for; nothing is computed here.
        """
        if draft is not None or capture_layers is not None:
            raise EngineError(
                "The replay engine computes nothing, so it neither drafts nor captures features. Set "
                "distil.capture_features: false, or the engine's name to native."
            )
        return ReplayStream(self.answers, self.limits, self.config)


class ReplayStream:
    """A `RequestStream` that answers as many requests at once as it is said to."""

    def __init__(self, answers: AnswerTable, limits: RequestLimits, config: ReplayEngineConfig):
        self.delivered_tokens = 0
        self._answers = answers
        self._limits = limits
        self._config = config
        self._waiting: dict[str, GenerationRequest] = {}
        self._host_s = 0.0

    @property
    def unfinished(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    @property
    def times(self) -> EngineTimes:
        """The account so far: looking answers up is all there is."""
        return EngineTimes(prefill_s=0.0, draft_s=0.0, verify_s=0.0, host_s=self._host_s)

    def submit(self, request: GenerationRequest) -> None:
        """Queue a request.

        Raises:
            EngineError: See `RequestLimits.check_request`; or a request of that id is unfinished.
        """
        self._limits.check_request(request)
        refuse_shaping(request, "the replay engine")
        if request.request_id in self._waiting:
            raise EngineError(
                f"Request {request.request_id!r} is still unfinished in this stream. "
                "Give every request an id of its own."
            )
        self._waiting[request.request_id] = request

    def advance(self) -> list[Generation | FailedRequest]:
        """Answer the first requests that wait."""
        started_s = perf_counter()
        first = list(islice(self._waiting, self._config.max_batch_size))
        outcomes = [self._answer(self._waiting.pop(request_id)) for request_id in first]
        self._host_s += perf_counter() - started_s
        return outcomes

    def new_ids(self) -> dict[str, tuple[int, ...]]:
        """Answers come whole."""
        return {}

    def cancel(self, request_id: str) -> None:
        """Withdraw a request that waits."""
        self._waiting.pop(request_id, None)

    def _answer(self, request: GenerationRequest) -> Generation | FailedRequest:
        found = self._answers.find(request.prompt_ids, request.seed)
        if found is None and self._config.unknown_prompts == "fail":
            return FailedRequest(
                request_id=request.request_id, reason=f"{self._config.source} holds no answer to the prompt"
            )
        answer_ids, finish_reason = found or self._answers.any(request.prompt_ids, request.seed)
        room = self._limits.room(request)
        if len(answer_ids) > room:
            answer_ids, finish_reason = answer_ids[:room], "length"
        self.delivered_tokens += len(answer_ids)
        return Generation(
            request_id=request.request_id,
            prompt_ids=request.prompt_ids,
            answer_ids=answer_ids,
            finish_reason=finish_reason,
            cycles=(),
        )

"""The native stream: requests in, finished answers out.

`admission` decides who runs, `prompts` and `batch` run them, `rows` decides what is committed.
"""

import torch

from eagleray.corpus.answer_text import AnswerText, Decode
from eagleray.engines.base import EngineTimes, FailedRequest, Generation, GenerationRequest
from eagleray.engines.native.admission import Admission
from eagleray.engines.native.batch import RunningBatch
from eagleray.engines.native.config import NativeEngineConfig
from eagleray.engines.native.limits import Limits
from eagleray.engines.native.prompts import Prompts
from eagleray.engines.native.rows import Row
from eagleray.engines.native.slots import Slots
from eagleray.engines.native.stopwatch import Stopwatch
from eagleray.errors import EngineError
from eagleray.speculation.depth import DepthChoice


class NativeStream:
    """A `RequestStream` over one running batch. Prefill time includes the drafter's reading of the prompt.

    Args:
        stop_ids: Ids that end an answer.
        show: Text of ids, for stop strings; None refuses them.
        lossy: Whether drafting may change the distribution of sampled answers.
    """

    def __init__(
        self,
        slots: Slots,
        prompts: Prompts,
        batch: RunningBatch,
        config: NativeEngineConfig,
        limits: Limits,
        stop_ids: frozenset[int],
        stopwatch: Stopwatch,
        show: Decode | None,
        *,
        lossy: bool,
    ):
        self.delivered_tokens = 0
        self._slots = slots
        self._prompts = prompts
        self._batch = batch
        self._limits = limits
        self._stop_ids = stop_ids
        self._admission = Admission(slots, prompts, config)
        self._stopwatch = stopwatch
        self._show = show
        self._lossy = lossy
        self._told: dict[str, int] = {}
        self._unfinished_ids: set[str] = set()

    @property
    def unfinished(self) -> int:
        """Requests that wait or run."""
        return len(self._unfinished_ids)

    @property
    def times(self) -> EngineTimes:
        """The account so far."""
        return self._stopwatch.times()

    @property
    def depth_choice(self) -> DepthChoice | None:
        """With an adaptive draft setting: the depth for the rows that run now, and why it was chosen."""
        return self._batch.depth_choice

    def submit(self, request: GenerationRequest) -> None:
        """Queue a request behind those that wait.

        Raises:
            EngineError: See `Limits.check_request`; or a request of that id is unfinished, has stop strings
                while this engine knows no tokenizer, or could never fit into the cache.
        """
        self._limits.check_request(request)
        if request.request_id in self._unfinished_ids:
            raise EngineError(
                f"Request {request.request_id!r} is still unfinished in this stream. "
                "Give every request an id of its own."
            )
        row = Row(request, self._limits.room(request), self._stop_ids, self._text(request))
        row.lossy = self._lossy and not request.sampling.greedy
        self._admission.add(row)
        self._unfinished_ids.add(request.request_id)

    def advance(self) -> list[Generation | FailedRequest]:
        """Let in what fits, run one forward of prompts and one cycle, and return what finished."""
        finished: list[Row] = []
        with torch.inference_mode(), self._stopwatch.running():
            if counts := self._admission.next_counts():
                self._prompts.run(counts)
                finished += self._slots.release()
            if self._slots.rows:
                self.delivered_tokens += self._batch.cycle()
                finished += self._slots.release()
        self._unfinished_ids.difference_update(row.request.request_id for row in finished)
        # Outside inference mode, so that captured features may enter a training step.
        return [row.generation() for row in finished]

    def new_ids(self) -> dict[str, tuple[int, ...]]:
        """Ids that each running request got since the last call, for answers that are shown as they come.

        Those that a finished request got last are in its generation alone.
        """
        new: dict[str, tuple[int, ...]] = {}
        told: dict[str, int] = {}
        for row in self._slots.rows:
            request_id = row.request.request_id
            new[request_id] = tuple(row.answer_ids[self._told.get(request_id, 0) :])
            told[request_id] = len(row.answer_ids)
        self._told = told
        return new

    def cancel(self, request_id: str) -> None:
        """Withdraw a request that waits or runs."""
        if request_id not in self._unfinished_ids:
            return
        self._unfinished_ids.remove(request_id)
        self._admission.drop(request_id)
        with torch.inference_mode():
            self._slots.drop(request_id)

    def _text(self, request: GenerationRequest) -> AnswerText | None:
        if not request.stop_strings:
            return None
        if self._show is None:
            raise EngineError(
                f"Request {request.request_id!r} has stop strings, but this engine was built without a "
                "tokenizer. Give NativeEngine `show`, as `build_engine` does."
            )
        return AnswerText(self._show, request.prompt_ids, request.stop_strings)

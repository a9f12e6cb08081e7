"""The native engine: greedy continuous batching over our own target decoder, with or without a drafter.

Runs anywhere torch does and is the referee: in float32 its answers with a drafter equal its
answers without. The loop here decides who runs; `batch` runs them; `rows` decides what is
committed.
"""

from collections import deque
from collections.abc import Callable, Sequence

import torch

from eagleray.engines.base import DraftSetting, GenerationRequest, GenerationRun
from eagleray.engines.native.batch import RunningBatch
from eagleray.engines.native.config import NativeEngineConfig
from eagleray.engines.native.rows import Row
from eagleray.engines.native.stopwatch import Stopwatch
from eagleray.errors import EngineError
from eagleray.targets.decoder import TargetDecoder


class NativeEngine:
    """An `Engine` that runs the target in this process.

    Args:
        stop_token_ids: Ids that end an answer. None: those of the target's folder.
    """

    def __init__(
        self,
        decoder: TargetDecoder,
        config: NativeEngineConfig,
        stop_token_ids: tuple[int, ...] | None = None,
    ):
        self.decoder = decoder
        self.config = config
        geometry = decoder.geometry
        self._stop_ids = frozenset(geometry.stop_token_ids if stop_token_ids is None else stop_token_ids)
        self.context_window_tokens = min(
            config.context_window_tokens or geometry.max_position_embeddings, geometry.max_position_embeddings
        )
        if config.threads is not None:
            torch.set_num_threads(config.threads)

    def generate(
        self,
        requests: Sequence[GenerationRequest],
        *,
        draft: DraftSetting | None = None,
        capture_layers: tuple[int, ...] | None = None,
        on_progress: Callable[[int], None] | None = None,
    ) -> GenerationRun:
        """Complete every request greedily.

        Prefill time includes the drafter's reading of the prompt. Memory of the cache is
        min(max_batch_size, requests) times the longest prompt plus answer.

        Raises:
            EngineError: A prompt is empty, leaves no room in the context window or holds an unknown id, a
                request asks for no token, or the drafter cannot draft that deep.
            ConfigError: The target slides its attention over less than the longest sequence.
        """
        stopwatch = Stopwatch()
        self._check(requests, draft, capture_layers)
        rows = [Row(request, self._room(request), self._stop_ids) for request in requests]
        with torch.inference_mode():
            batch = self._open_batch(requests, draft, capture_layers, stopwatch)
            self._run(batch, deque(rows), on_progress)
        # Outside inference mode, so that captured features may enter a training step.
        generations = tuple(row.generation() for row in rows)
        return GenerationRun(generations=generations, times=stopwatch.times())

    def _run(
        self, batch: RunningBatch, waiting: deque[Row], on_progress: Callable[[int], None] | None
    ) -> None:
        while waiting or batch.rows:
            while waiting and batch.free_slots:
                batch.admit(self._next_group(waiting, batch.free_slots))
                batch.release()
            if batch.rows:
                delivered_tokens = batch.cycle()
                batch.release()
                if on_progress is not None:
                    on_progress(delivered_tokens)

    def _room(self, request: GenerationRequest) -> int:
        return min(request.max_new_tokens, self.context_window_tokens - len(request.prompt_ids))

    def _open_batch(
        self,
        requests: Sequence[GenerationRequest],
        draft: DraftSetting | None,
        capture_layers: tuple[int, ...] | None,
        stopwatch: Stopwatch,
    ) -> RunningBatch:
        max_length = max((len(request.prompt_ids) + self._room(request) for request in requests), default=1)
        max_rows = min(self.config.max_batch_size, max(1, len(requests)))
        return RunningBatch(self.decoder, draft, capture_layers, max_rows, max_length, stopwatch)

    def _next_group(self, waiting: deque[Row], slots: int) -> list[Row]:
        """Take the first rows that wait, as many as slots and the prefill bound allow, at least one."""
        group = [waiting.popleft()]
        tokens = len(group[0].request.prompt_ids)
        while waiting and len(group) < slots:
            tokens += len(waiting[0].request.prompt_ids)
            if tokens > self.config.max_prefill_tokens:
                break
            group.append(waiting.popleft())
        return group

    def _check(
        self,
        requests: Sequence[GenerationRequest],
        draft: DraftSetting | None,
        capture_layers: tuple[int, ...] | None,
    ) -> None:
        for request in requests:
            self._check_request(request)
        num_layers = self.decoder.geometry.num_layers
        for layers in (draft.source.tapped_layers if draft else (), capture_layers or ()):
            if list(layers) != sorted(set(layers) & set(range(num_layers))):
                raise EngineError(
                    f"Feature layers {layers} were asked of a target of {num_layers} layers; "
                    f"expected strictly increasing numbers from 0 to {num_layers - 1}."
                )
        if draft is not None and not 1 <= draft.depth <= (draft.source.max_depth or draft.depth):
            raise EngineError(
                f"Draft depth is {draft.depth}; this drafter drafts at least 1 and at most "
                f"{draft.source.max_depth or 'any number of'} tokens per cycle. Change the depth."
            )

    def _check_request(self, request: GenerationRequest) -> None:
        prompt = request.prompt_ids
        vocab_size = self.decoder.geometry.vocab_size
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
        if not 0 <= min(prompt) <= max(prompt) < vocab_size:
            raise EngineError(
                f"Request {request.request_id!r} holds ids from {min(prompt)} to {max(prompt)}; the target's "
                f"vocabulary is 0 to {vocab_size - 1}. Encode the prompt with the tokenizer of this target."
            )

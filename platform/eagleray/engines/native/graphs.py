"""Steps of the target that are recorded once and replayed: CUDA graphs.

A step of few tokens launches hundreds of small kernels, and on a GPU it takes as long as launching them does.
A recorded step is launched in one call. It has fixed shapes and addresses, so rows are padded to a power of
two, the cache is read up to a power of two of positions, and what is asked goes into buffers of its own.
A padding row writes after what its slot holds, as a rejected draft does, so it touches nothing that counts.
Shapes: B rows, Q new tokens of each row, L tapped layers, D target width.
"""

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from eagleray.engines.native.config import NativeEngineConfig
from eagleray.targets.attention import StepPlaces
from eagleray.targets.decoder import TargetDecoder, check_window
from eagleray.targets.kv_cache import KVCache

MOST_TOKENS = 512
"""Of padded steps that are recorded: beyond, computing takes longer than launching."""

SHORTEST_WINDOW = 128
"""Positions of a row that the shortest recording reads."""

EAGER_STEPS = 2
"""A shape runs so often before it is recorded: recording costs some steps, and rare shapes never pay it."""

MOST_RECORDINGS = 64
"""Those that were not used for the longest time make room."""

Outputs = tuple[Tensor, Tensor]
"""features_BQLD and final_BQD."""

logger = logging.getLogger(__name__)


class Recording(NamedTuple):
    """Work that was recorded."""

    outputs: Outputs
    """Where every replay leaves its results."""
    replay: Callable[[], object]


class Recorder(Protocol):
    """Records work on tensors that stay where they are."""

    def record(self, run: Callable[[], Outputs]) -> Recording:
        """Record what `run` does. It may run any number of times, or not at all, before the first replay.

        Raises:
            RuntimeError: It cannot be recorded.
        """
        ...

    def forget(self) -> None:
        """No recording made so far will be replayed again."""
        ...


class CudaRecorder:
    """Records CUDA graphs; all of one recorder share the memory of what they compute on the way."""

    def __init__(self) -> None:
        # Its pool of memory is alive as long as it is.
        self._newest: torch.cuda.CUDAGraph | None = None

    def record(self, run: Callable[[], Outputs]) -> Recording:
        """Run once, so that libraries are loaded and have their workspaces, then record."""
        current, aside = torch.cuda.current_stream(), torch.cuda.Stream()
        aside.wait_stream(current)
        with torch.cuda.stream(aside):
            run()
        current.wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        pool = None if self._newest is None else self._newest.pool()
        try:
            # Other threads of a server may go on with their own work meanwhile.
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                outputs = run()
        finally:
            # A recording that breaks off leaves its own stream behind as the current one.
            torch.cuda.set_stream(current)
        self._newest = graph
        return Recording(outputs, graph.replay)

    def forget(self) -> None:
        """Give the memory back, and begin anew."""
        self._newest = None


@dataclass(frozen=True)
class StepShape:
    """What of a step is fixed when it is recorded."""

    rows: int
    queries: int
    window: int
    layers: tuple[int, ...]
    tree: bool

    @classmethod
    def of(cls, ids_BQ: Tensor, cache: KVCache, layers: tuple[int, ...], *, tree: bool) -> "StepShape | None":
        """The least shape that holds a step; None where there is none."""
        asked, queries = ids_BQ.shape
        rows = min(power_of_two(asked), cache.max_rows)
        # Padding rows may be prompts that are still run, longer than those that decode.
        needed = max(cache.lengths[:rows]) + queries
        window = min(max(power_of_two(needed), SHORTEST_WINDOW), cache.max_length)
        if rows * queries > MOST_TOKENS or needed > window or not cache.fits(rows, window):
            return None
        return cls(rows, queries, window, layers, tree)


class RecordedStep:
    """One recording, and the buffers that it reads."""

    def __init__(self, shape: StepShape, decoder: TargetDecoder, device: torch.device):
        self._shape = shape
        self._decoder = decoder
        self._ids_BQ = torch.zeros(shape.rows, shape.queries, dtype=torch.int64, device=device)
        self._lengths_B = torch.zeros(shape.rows, dtype=torch.int64, device=device)
        self._ancestry_BQQ: Tensor | None = None
        if shape.tree:
            # Every token of a padding row sees itself: nothing is divided by no weight at all.
            itself_QQ = torch.eye(shape.queries, dtype=torch.bool, device=device)
            self._ancestry_BQQ = itself_QQ.repeat(shape.rows, 1, 1)
        self._recording: Recording | None = None

    def fill(self, ids_BQ: Tensor, lengths: Sequence[int], ancestry_BQQ: Tensor | None) -> None:
        """Say what the next step is to do; rows beyond those given are padding.

        Args:
            lengths: Of all rows, padding included: they say what a row must not write over.
        """
        rows = len(ids_BQ)
        self._ids_BQ[:rows].copy_(ids_BQ)
        self._lengths_B.copy_(torch.tensor(lengths[: self._shape.rows]))
        if self._ancestry_BQQ is not None and ancestry_BQQ is not None:
            self._ancestry_BQQ[:rows].copy_(ancestry_BQQ)

    def record(self, cache: KVCache, recorder: Recorder) -> None:
        """Record; the buffers must have been filled, as recording may write to the cache."""
        places = StepPlaces(self._lengths_B, self._shape.window)

        def run() -> Outputs:
            return self._decoder.step_at(places, self._ids_BQ, cache, self._shape.layers, self._ancestry_BQQ)

        self._recording = recorder.record(run)

    def replay(self, rows: int) -> Outputs:
        """Run what the buffers say. Returns the first rows, copied before the next replay."""
        assert self._recording is not None, "record() was not called"
        self._recording.replay()
        features_BQLD, final_BQD = self._recording.outputs
        return features_BQLD[:rows].clone(), final_BQD[:rows].clone()


class StepGraphs:
    """Runs the steps of one cache, recorded where that pays."""

    def __init__(self, decoder: TargetDecoder, recorder: Recorder):
        self.replays = 0
        """Steps that were replayed."""
        self.recordings = 0
        """Steps that were recorded, so took long."""
        self._decoder = decoder
        self._recorder: Recorder | None = recorder
        self._asked: Counter[StepShape] = Counter()
        self._recorded: OrderedDict[StepShape, RecordedStep] = OrderedDict()
        self._allocations = 0

    def step(
        self,
        ids_BQ: Tensor,
        cache: KVCache,
        layers: tuple[int, ...] = (),
        ancestry_BQQ: Tensor | None = None,
    ) -> Outputs:
        """See `TargetDecoder.step`."""
        if recorded := self._filled(ids_BQ, cache, layers, ancestry_BQQ):
            self.replays += 1
            return recorded.replay(len(ids_BQ))
        return self._decoder.step(ids_BQ, cache, layers, ancestry_BQQ)

    def _filled(
        self, ids_BQ: Tensor, cache: KVCache, layers: tuple[int, ...], ancestry_BQQ: Tensor | None
    ) -> RecordedStep | None:
        """The recording of a step, told what to do; None where it is to run as it is."""
        if self._recorder is None:
            return None
        shape = StepShape.of(ids_BQ, cache, layers, tree=ancestry_BQQ is not None)
        if shape is None:
            return None
        self._asked[shape] += 1
        if self._asked[shape] <= EAGER_STEPS:
            return None
        check_window(self._decoder.geometry, max(cache.lengths[: len(ids_BQ)]) + 1)
        cache.reserve(shape.rows, shape.window)
        if cache.allocations != self._allocations:
            self._forget()
            self._allocations = cache.allocations
        step = self._recorded.get(shape) or RecordedStep(shape, self._decoder, ids_BQ.device)
        step.fill(ids_BQ, cache.lengths, ancestry_BQQ)
        if shape not in self._recorded and not self._record(shape, step, cache, self._recorder):
            return None
        self._recorded.move_to_end(shape)
        return step

    def _record(self, shape: StepShape, step: RecordedStep, cache: KVCache, recorder: Recorder) -> bool:
        try:
            step.record(cache, recorder)
        except RuntimeError as error:
            logger.warning(
                "Decoding goes on without CUDA graphs, as %s cannot be recorded: %s. If memory was short, "
                "lower max_batch_size or kv_cache_gib in the engine's settings.",
                shape,
                error,
            )
            self._recorder = None
            self._recorded.clear()
            return False
        self.recordings += 1
        self._recorded[shape] = step
        if len(self._recorded) > MOST_RECORDINGS:
            self._recorded.popitem(last=False)
        return True

    def _forget(self) -> None:
        """Drop recordings of a cache that lies elsewhere now."""
        self._recorded.clear()
        if self._recorder is not None:
            self._recorder.forget()


def graphs_for(decoder: TargetDecoder, config: NativeEngineConfig) -> StepGraphs | None:
    """Graphs for one stream; None where they are switched off or there is no GPU."""
    if not config.cuda_graphs or decoder.device.type != "cuda":
        return None
    return StepGraphs(decoder, CudaRecorder())


def power_of_two(number: int) -> int:
    """The least power of two that is no less than a positive number."""
    return 1 << (number - 1).bit_length()

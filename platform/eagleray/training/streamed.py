"""Features that other processes computed, taken from a stream of micro-batches in the order of the plan.

Shapes: B batch rows, T positions, L tapped layers, D target width.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from safetensors.torch import load, save
from torch import Tensor

from eagleray.errors import ClusterError, EagleRayError
from eagleray.training.batches import BatchPlan
from eagleray.training.config import TrainingConfig
from eagleray.training.features import FeatureSource
from eagleray.training.rows import TrainingRow, TrainingRows
from eagleray.watchdog.telemetry import Phase


@dataclass(frozen=True, kw_only=True)
class StreamedBatch:
    """Features of the rows of one micro-batch, or why there are none."""

    names: str
    """Of the rows, in their order."""
    tensors: bytes = b""
    """features_BTLD and final_BTD as safetensors: any dtype, bit for bit."""
    error: EagleRayError | None = None


def pack_features(rows: Sequence[TrainingRow], features_BTLD: Tensor, final_BTD: Tensor) -> StreamedBatch:
    """Make a micro-batch ready to travel."""
    tensors = {"features": features_BTLD.contiguous(), "final": final_BTD.contiguous()}
    return StreamedBatch(names=name_rows(rows), tensors=save(tensors))


def name_rows(rows: Sequence[TrainingRow]) -> str:
    """Names that tell any two micro-batches apart."""
    return " ".join(f"{row.sample.sample_id}[{row.start}:{row.end}]" for row in rows)


def in_stream_order(
    plan: BatchPlan, step: int, ranks: int, config: TrainingConfig
) -> Iterator[tuple[int, list[int]]]:
    """Rank and rows of each micro-batch of a step: first one of each rank, then a second of each, and so on.

    Dealt out in turn, each rank gets its own.
    """
    shares = [
        plan.micro_batches(
            step,
            rank=rank,
            ranks=ranks,
            micro_batch_size=config.micro_batch_size,
            row_tokens=config.row_tokens,
        )
        for rank in range(ranks)
    ]
    for micro_batches in zip(*shares, strict=True):
        yield from enumerate(micro_batches)


class StreamedFeatures:
    """Takes features of training rows from a stream, and those of other rows from another source.

    Args:
        others: For samples that are not trained on.
        kept_out: Ids of those.
    """

    phase: Phase = "data"

    def __init__(self, stream: Iterator[StreamedBatch], others: FeatureSource, kept_out: Collection[str]):
        self._stream = stream
        self._others = others
        self._kept_out = set(kept_out)

    def features(self, rows: Sequence[TrainingRow], device: torch.device) -> tuple[Tensor, Tensor]:
        """Take the next micro-batch, which must be that of `rows`.

        Raises:
            EagleRayError: The process that should have computed it raised this.
            ClusterError: The stream ended, or gave another micro-batch.
        """
        if rows[0].sample.sample_id in self._kept_out:
            return self._others.features(rows, device)
        batch = next(self._stream, None)
        if batch is not None and batch.error is not None:
            raise batch.error
        if batch is None or batch.names != name_rows(rows):
            found = "ended" if batch is None else f"gave {batch.names}"
            raise ClusterError(
                f"The stream of features {found}; this rank is at {name_rows(rows)}. Start the same command "
                "again: it goes on from the newest checkpoint. If it comes back, set training.features to "
                "colocated."
            )
        tensors = load(batch.tensors)
        return tensors["features"].to(device), tensors["final"].to(device)


class BatchCapturer:
    """Computes the micro-batches of steps, in stream order.

    Args:
        source: Runs the target.
    """

    def __init__(
        self,
        rows: TrainingRows,
        plan: BatchPlan,
        config: TrainingConfig,
        source: FeatureSource,
        device: torch.device,
    ):
        self._rows = rows
        self._plan = plan
        self._config = config
        self._source = source
        self._device = device

    def step(self, step: int, ranks: int) -> Iterator[StreamedBatch]:
        """All micro-batches of a step, for all ranks."""
        for _, share in in_stream_order(self._plan, step, ranks, self._config):
            rows = [self._rows[index] for index in share]
            yield pack_features(rows, *self._source.features(rows, self._device))

"""Where the features of a batch come from: a store on disk, or the target running beside the drafter.

Shapes: B batch rows, T positions, L tapped layers, D target width.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from eagleray.corpus.sample import Sample
from eagleray.errors import ConfigError
from eagleray.targets.feature_store import FeatureStore
from eagleray.training.rows import TrainingRow
from eagleray.watchdog.telemetry import Phase


class FeatureSource(Protocol):
    """Gives the tapped features of whole sequences."""

    phase: Phase
    """What a rank does while it fetches them."""

    def features(self, rows: Sequence[TrainingRow], device: torch.device) -> tuple[Tensor, Tensor]:
        """Return features_BTLD and final_BTD, T being the longest row; padding holds zeros.

        They are those that the target has at these positions of the whole sample.
        """
        ...


class CapturingTarget(Protocol):
    """What `ColocatedFeatures` needs of a target."""

    def capture(self, ids_BT: Tensor, lengths_B: Tensor, layers: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Run the target over whole sequences; returns features_BTLD and final_BTD."""
        ...


class ColocatedFeatures:
    """Runs the target for each batch."""

    phase: Phase = "target"

    def __init__(self, target: CapturingTarget, layers: tuple[int, ...]):
        self._target = target
        self._layers = layers

    def features(self, rows: Sequence[TrainingRow], device: torch.device) -> tuple[Tensor, Tensor]:
        """Run the target over each sample up to the end of its row; what comes after changes nothing."""
        ends = [row.end for row in rows]
        ids_BT = torch.zeros(len(rows), max(ends), dtype=torch.int64)
        for index, row in enumerate(rows):
            ids_BT[index, : row.end] = torch.tensor(row.sample.input_ids[: row.end])
        captured = self._target.capture(ids_BT.to(device), torch.tensor(ends, device=device), self._layers)
        if not any(row.start for row in rows):
            return captured
        features, final = (
            pad_sequence(
                [whole[index, row.start : row.end] for index, row in enumerate(rows)], batch_first=True
            )
            for whole in captured
        )
        return features, final


Captured = dict[str, tuple[Tensor, Tensor]]
"""features_TLD and final_TD by sample id."""


class MemoryFeatures:
    """Features in memory, of datasets that fit into it: see `capture_all`."""

    phase: Phase = "data"

    def __init__(self, kept: Captured):
        self._kept = kept

    def of(self, sample: Sample) -> tuple[Tensor, Tensor]:
        """features_TLD and final_TD of one sample."""
        return self._kept[sample.sample_id]

    def features(self, rows: Sequence[TrainingRow], device: torch.device) -> tuple[Tensor, Tensor]:
        """Take from memory."""
        return _pad(rows, [self.of(row.sample) for row in rows], device)


class StoredFeatures:
    """Reads features that were captured while the answers were generated.

    Args:
        layers: Layers the drafter taps; the store may hold more.
        cache_bytes: Keep what was read, in the store's dtype, until this is full: an epoch asks for every
            sample once, so what is kept helps more than what would take its place.

    Raises:
        ConfigError: The store does not hold a tapped layer.
    """

    phase: Phase = "data"

    def __init__(self, store: FeatureStore, layers: tuple[int, ...], *, cache_bytes: int):
        if missing := set(layers) - set(store.layers):
            raise ConfigError(
                f"Stored features hold layers {store.layers}; the drafter taps {sorted(missing)} too. Distil "
                "again with this drafter in the recipe, or set training.features to colocated."
            )
        self._store = store
        self._columns = [store.layers.index(layer) for layer in layers]
        self._cache: dict[str, tuple[Tensor, Tensor]] = {}
        self._free_bytes = cache_bytes

    def features(self, rows: Sequence[TrainingRow], device: torch.device) -> tuple[Tensor, Tensor]:
        """Read, or take from memory. The last position of a whole sequence was never computed and is zero."""
        return _pad(rows, [self._read(row.sample) for row in rows], device)

    def _read(self, sample: Sample) -> tuple[Tensor, Tensor]:
        if sample.sample_id in self._cache:
            return self._cache[sample.sample_id]
        features_TLD, final_TD = self._store.get(sample.sample_id, sample.input_ids)
        kept = (features_TLD[:, self._columns].to(self._store.dtype), final_TD.to(self._store.dtype))
        size = sum(tensor.nbytes for tensor in kept)
        if size <= self._free_bytes:
            self._cache[sample.sample_id] = kept
            self._free_bytes -= size
        return kept


def capture_all(target: CapturingTarget, layers: tuple[int, ...], samples: Sequence[Sample]) -> Captured:
    """Run the target over each sample, one after the other."""
    return {sample.sample_id: _capture(target, layers, sample) for sample in samples}


def _capture(target: CapturingTarget, layers: tuple[int, ...], sample: Sample) -> tuple[Tensor, Tensor]:
    ids_1T = torch.tensor([sample.input_ids])
    features_1TLD, final_1TD = target.capture(ids_1T, torch.tensor([ids_1T.shape[1]]), layers)
    return features_1TLD[0], final_1TD[0]


def _pad(
    rows: Sequence[TrainingRow], kept: Sequence[tuple[Tensor, Tensor]], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Take each row's positions out of its sample's features and fill up with zeros, in float32."""
    longest = max(row.length for row in rows)
    features_BTLD = torch.zeros(len(rows), longest, *kept[0][0].shape[1:])
    final_BTD = torch.zeros(len(rows), longest, kept[0][1].shape[-1])
    for index, (row, (features_TLD, final_TD)) in enumerate(zip(rows, kept, strict=True)):
        known = min(len(final_TD), row.end) - row.start
        features_BTLD[index, :known] = features_TLD[row.start : row.start + known]
        final_BTD[index, :known] = final_TD[row.start : row.start + known]
    return features_BTLD.to(device), final_BTD.to(device)

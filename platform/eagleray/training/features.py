"""Where the features of a batch come from: a store on disk, or the target running beside the drafter.

Shapes: B batch rows, T positions, L tapped layers, D target width.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from eagleray.corpus.sample import Sample
from eagleray.errors import ConfigError
from eagleray.targets.feature_store import FeatureStore


class FeatureSource(Protocol):
    """Gives the tapped features of whole sequences."""

    def features(self, samples: Sequence[Sample], ids_BT: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        """Return features_BTLD and final_BTD; padding holds zeros.

        Args:
            ids_BT: Ids of `samples`, cut to the training length and right-padded.
        """
        ...


class CapturingTarget(Protocol):
    """What `ColocatedFeatures` needs of a target."""

    def capture(self, ids_BT: Tensor, lengths_B: Tensor, layers: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Run the target over whole sequences; returns features_BTLD and final_BTD."""
        ...


class ColocatedFeatures:
    """Runs the target for each batch."""

    def __init__(self, target: CapturingTarget, layers: tuple[int, ...]):
        self._target = target
        self._layers = layers

    def features(self, samples: Sequence[Sample], ids_BT: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        """Capture now."""
        return self._target.capture(ids_BT, lengths_B, self._layers)


class StoredFeatures:
    """Reads features that were captured while the answers were generated.

    Args:
        layers: Layers the drafter taps; the store may hold more.
        cache: Keep what was read, in the store's dtype.

    Raises:
        ConfigError: The store does not hold a tapped layer.
    """

    def __init__(self, store: FeatureStore, layers: tuple[int, ...], *, cache: bool):
        if missing := set(layers) - set(store.layers):
            raise ConfigError(
                f"Stored features hold layers {store.layers}; the drafter taps {sorted(missing)} too. Distil "
                "again with this drafter in the recipe, or set training.features to colocated."
            )
        self._store = store
        self._columns = [store.layers.index(layer) for layer in layers]
        self._cache: dict[str, tuple[Tensor, Tensor]] | None = {} if cache else None

    def features(self, samples: Sequence[Sample], ids_BT: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        """Read, or take from memory. The last position of a whole sequence was never computed and is zero."""
        rows = [self._read(sample) for sample in samples]
        width = rows[0][1].shape[-1]
        features_BTLD = torch.zeros(*ids_BT.shape, len(self._columns), width)
        final_BTD = torch.zeros(*ids_BT.shape, width)
        for row, (features_TLD, final_TD) in enumerate(rows):
            known = min(len(final_TD), int(lengths_B[row]))
            features_BTLD[row, :known] = features_TLD[:known]
            final_BTD[row, :known] = final_TD[:known]
        return features_BTLD.to(ids_BT.device), final_BTD.to(ids_BT.device)

    def _read(self, sample: Sample) -> tuple[Tensor, Tensor]:
        if self._cache is not None and sample.sample_id in self._cache:
            return self._cache[sample.sample_id]
        features_TLD, final_TD = self._store.get(sample.sample_id, sample.input_ids)
        kept = (features_TLD[:, self._columns].to(self._store.dtype), final_TD.to(self._store.dtype))
        if self._cache is not None:
            self._cache[sample.sample_id] = kept
        return kept

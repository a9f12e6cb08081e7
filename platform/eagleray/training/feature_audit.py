"""Stored features against the target itself: a random share is computed again and compared.

Capturing while decoding goes through caches, batches and row moves; this goes through one forward over
the whole sequence. Agreement says that layer ids and positions of the store are right.
Shapes: T positions, L tapped layers, D target width.
"""

import random
from collections.abc import Iterable

import torch
from torch import Tensor

from eagleray.corpus.sample import Sample
from eagleray.errors import NumericsError
from eagleray.targets.feature_store import FeatureStore
from eagleray.training.features import CapturingTarget

TOLERANCE = 0.1
"""Largest relative error of a position. Rounding, also that of a bfloat16 target, stays well below; a wrong
layer or position gives errors near 1."""


class FeatureAudit:
    """Audits samples as they come.

    Args:
        store: None audits nothing.
        share: About this share of the samples; which ones depends on their ids alone.
    """

    def __init__(self, store: FeatureStore | None, target: CapturingTarget, share: float):
        self._store = store
        self._target = target
        self._share = share
        self.audited_rows = 0
        self.worst_relative_error = 0.0

    def check(self, samples: Iterable[Sample]) -> None:
        """Compare the stored features of the chosen samples with computed ones.

        Raises:
            DataError: Features of a chosen sample are missing, damaged or of other tokens.
            NumericsError: They are not those of this target; names the sample, layer and position.
        """
        if self._store is None:
            return
        for sample in samples:
            if random.Random(sample.sample_id).random() < self._share:
                error_TL = relative_errors(self._store, sample, self._target)
                _require_small(error_TL, sample, self._store)
                self.audited_rows += 1
                self.worst_relative_error = max(self.worst_relative_error, error_TL.max().item())


def relative_errors(store: FeatureStore, sample: Sample, target: CapturingTarget) -> Tensor:
    """error_TL: distance between stored and computed features over the norm of the computed ones.

    The final state is the last column.
    """
    stored_TLD, stored_final_TD = store.get(sample.sample_id, sample.input_ids)
    ids_BT = torch.tensor([sample.input_ids[:-1]])
    computed_BTLD, computed_final_BTD = target.capture(ids_BT, torch.tensor([ids_BT.shape[1]]), store.layers)
    stored_TLD = torch.cat([stored_TLD, stored_final_TD[:, None]], dim=1)
    computed_TLD = torch.cat([computed_BTLD[0], computed_final_BTD[0][:, None]], dim=1).float().cpu()
    return (stored_TLD - computed_TLD).norm(dim=-1) / computed_TLD.norm(dim=-1).clamp_min(1e-12)


def _require_small(error_TL: Tensor, sample: Sample, store: FeatureStore) -> None:
    error = error_TL.max().item()
    if not error <= TOLERANCE:
        position, column = divmod(int(error_TL.argmax()), error_TL.shape[1])
        layer = [*map(str, store.layers), "final"][column]
        raise NumericsError(
            f"Stored features of sample {sample.sample_id} are not the target's: at position {position}, "
            f"layer {layer}, they are off by {error:.3g} of their norm; expected at most {TOLERANCE:g}. "
            "The target or the engine's capture changed: start anew with --redo distil."
        )

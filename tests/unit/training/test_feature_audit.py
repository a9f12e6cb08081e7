"""Stored features against a target that computes them again."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from eagleray.corpus.sample import Sample
from eagleray.errors import DataError, NumericsError
from eagleray.targets.feature_store import FeatureStore
from eagleray.training.feature_audit import FeatureAudit

LAYERS = (1, 4)
MakeSamples = Callable[..., list[Sample]]


class PretendTarget:
    """Features that depend on token, position and layer."""

    def __init__(self) -> None:
        self.captured_rows = 0

    def capture(self, ids_BT: Tensor, lengths_B: Tensor, layers: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        self.captured_rows += len(ids_BT)
        features = [self._state(ids_BT, layer) for layer in layers]
        return torch.stack(features, dim=2), self._state(ids_BT, 99)

    def _state(self, ids_BT: Tensor, layer: int) -> Tensor:
        table_VD = torch.randn(12, 16, generator=torch.Generator().manual_seed(layer))
        positions_T = torch.arange(ids_BT.shape[1])[:, None]
        return table_VD[ids_BT] + torch.sin(positions_T * torch.arange(1, 17) * (layer + 1))


def fill(store: FeatureStore, samples: list[Sample], shift: int = 0) -> None:
    for sample in samples:
        ids_BT = torch.tensor([sample.input_ids[:-1]])
        features_BTLD, final_BTD = PretendTarget().capture(
            ids_BT, torch.tensor([ids_BT.shape[1]]), store.layers
        )
        store.put(sample.sample_id, sample.input_ids, features_BTLD[0].roll(shift, 0), final_BTD[0])


def test_rounded_features_of_the_same_target_pass(tmp_path: Path, samples: MakeSamples) -> None:
    rows, store, target = samples(*[(2, 6)] * 4), FeatureStore(tmp_path, LAYERS), PretendTarget()
    fill(store, rows)
    audit = FeatureAudit(store, target, 1.0)
    audit.check(rows)
    assert audit.audited_rows == target.captured_rows == 4
    assert 0 < audit.worst_relative_error < 0.01


def test_features_one_position_off_are_refused(tmp_path: Path, samples: MakeSamples) -> None:
    rows, store = samples((2, 6)), FeatureStore(tmp_path, LAYERS)
    fill(store, rows, shift=1)
    with pytest.raises(NumericsError, match=r"sample-0 .* at position \d, layer [14], they are off by"):
        FeatureAudit(store, PretendTarget(), 1.0).check(rows)


def test_features_under_another_layer_id_are_refused(tmp_path: Path, samples: MakeSamples) -> None:
    rows = samples((2, 6))
    fill(FeatureStore(tmp_path, LAYERS), rows)
    store = FeatureStore(tmp_path / "moved", (1, 5))
    features_TLD, final_TD = FeatureStore(tmp_path, LAYERS).get("sample-0", rows[0].input_ids)
    store.put("sample-0", rows[0].input_ids, features_TLD, final_TD)
    with pytest.raises(NumericsError, match="layer 5"):
        FeatureAudit(store, PretendTarget(), 1.0).check(rows)


def test_the_share_is_drawn_by_id_alone(tmp_path: Path, samples: MakeSamples) -> None:
    rows, store = samples(*[(2, 3)] * 200), FeatureStore(tmp_path, LAYERS)
    fill(store, rows)
    audit, backwards = FeatureAudit(store, PretendTarget(), 0.2), FeatureAudit(store, PretendTarget(), 0.2)
    audit.check(rows)
    for row in reversed(rows):
        backwards.check([row])
    assert audit.audited_rows == backwards.audited_rows
    assert 20 <= audit.audited_rows <= 60


def test_missing_features_are_refused_and_no_store_needs_no_audit(
    tmp_path: Path, samples: MakeSamples
) -> None:
    rows = samples((2, 6))
    with pytest.raises(DataError, match="no stored features"):
        FeatureAudit(FeatureStore(tmp_path, LAYERS), PretendTarget(), 1.0).check(rows)
    FeatureAudit(None, PretendTarget(), 1.0).check(rows)

from pathlib import Path

import pytest
import torch

from eagleray.errors import DataError
from eagleray.targets.feature_store import FeatureStore


def test_features_come_back_within_the_stored_precision(tmp_path: Path) -> None:
    features, final = torch.randn(5, 2, 8), torch.randn(5, 8)
    exact = FeatureStore(tmp_path / "a", (1, 3), torch.float32)
    exact.put("ab12", features, final)
    got_features, got_final = exact.get("ab12", 5)
    assert torch.equal(got_features, features)
    assert torch.equal(got_final, final)
    rounded = FeatureStore(tmp_path / "b", (1, 3))
    rounded.put("ab12", features, final)
    assert torch.equal(rounded.get("ab12", 5)[1], final.bfloat16().float())


def test_other_layers_or_another_length_are_refused(tmp_path: Path) -> None:
    store = FeatureStore(tmp_path, (1, 3))
    store.put("ab12", torch.zeros(5, 2, 8), torch.zeros(5, 8))
    with pytest.raises(DataError, match="layers 1,3"):
        FeatureStore(tmp_path, (1, 2)).get("ab12", 5)
    with pytest.raises(DataError, match="cover 5 positions; expected 6"):
        store.get("ab12", 6)
    with pytest.raises(DataError, match="no stored features"):
        store.get("ffff", 5)


def test_storing_twice_leaves_one_file(tmp_path: Path) -> None:
    store = FeatureStore(tmp_path, (0,))
    assert not store.has("ab12")
    for _ in range(2):
        store.put("ab12", torch.zeros(3, 1, 4), torch.zeros(3, 4))
    assert store.has("ab12")
    assert sum(path.is_file() for path in tmp_path.rglob("*")) == 1

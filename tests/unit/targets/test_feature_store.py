"""Stored features come back as they were put, or not at all."""

import random
from pathlib import Path

import pytest
import torch

from eagleray.errors import DataError, NumericsError
from eagleray.targets.feature_store import FeatureStore, bytes_per_token, token_hash

IDS = (7, 3, 3, 9, 1, 2)
"""Six tokens: features exist for the first five."""


def test_features_come_back_within_the_stored_precision(tmp_path: Path) -> None:
    features, final = torch.randn(5, 2, 8), torch.randn(5, 8)
    exact = FeatureStore(tmp_path / "a", (1, 3), torch.float32)
    exact.put("ab12", IDS, features, final)
    got_features, got_final = exact.get("ab12", IDS)
    assert torch.equal(got_features, features)
    assert torch.equal(got_final, final)
    for dtype in (torch.bfloat16, torch.float16):
        rounded = FeatureStore(tmp_path / str(dtype), (1, 3), dtype)
        rounded.put("ab12", IDS, features, final)
        assert torch.equal(rounded.get("ab12", IDS)[1], final.to(dtype).float())


def test_other_layers_tokens_lengths_and_dtypes_are_refused(tmp_path: Path) -> None:
    store = FeatureStore(tmp_path, (1, 3))
    store.put("ab12", IDS, torch.zeros(5, 2, 8), torch.zeros(5, 8))
    with pytest.raises(DataError, match=r"layers 1,3; expected 1,2\..*--repair"):
        FeatureStore(tmp_path, (1, 2)).get("ab12", IDS)
    with pytest.raises(DataError, match="dtype bfloat16; expected float32"):
        FeatureStore(tmp_path, (1, 3), torch.float32).get("ab12", IDS)
    with pytest.raises(DataError, match="positions 5; expected 6"):
        store.get("ab12", (*IDS, 4))
    with pytest.raises(DataError, match="token_hash"):
        store.get("ab12", (7, 3, 3, 9, 1, 4))
    with pytest.raises(DataError, match="no stored features"):
        store.get("ffff", IDS)


def test_every_one_of_two_hundred_flipped_bits_is_refused(tmp_path: Path) -> None:
    store = FeatureStore(tmp_path, (1, 3))
    store.put("ab12", IDS, torch.randn(5, 2, 8), torch.randn(5, 8))
    path = store.path("ab12")
    whole = path.read_bytes()
    generator = random.Random(20)
    for _ in range(200):
        damaged = bytearray(whole)
        damaged[generator.randrange(len(whole))] ^= 1 << generator.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(DataError, match="ab12"):
            store.get("ab12", IDS)
    path.write_bytes(whole)
    store.get("ab12", IDS)


@pytest.mark.parametrize("kept", [0, 7, 100, -1])
def test_a_file_cut_short_is_refused(tmp_path: Path, kept: int) -> None:
    store = FeatureStore(tmp_path, (0,))
    store.put("ab12", IDS, torch.zeros(5, 1, 4), torch.zeros(5, 4))
    store.path("ab12").write_bytes(store.path("ab12").read_bytes()[:kept])
    with pytest.raises(DataError, match="ab12"):
        store.get("ab12", IDS)


def test_what_is_not_finite_or_not_in_the_stored_dtype_is_never_written(tmp_path: Path) -> None:
    large = torch.full((5, 1, 4), 1e5)
    wide, narrow = FeatureStore(tmp_path, (0,)), FeatureStore(tmp_path / "half", (0,), torch.float16)
    wide.put("ab12", IDS, large, torch.zeros(5, 4))
    with pytest.raises(NumericsError, match=r"largest magnitude is 100000.*feature_store.dtype to bfloat16"):
        narrow.put("ab12", IDS, large, torch.zeros(5, 4))
    with pytest.raises(NumericsError, match="not finite"):
        wide.put("cd34", IDS, torch.zeros(5, 1, 4), torch.full((5, 4), torch.nan))
    assert not wide.path("cd34").exists()
    assert not narrow.path("ab12").exists()


def test_storing_twice_leaves_one_file(tmp_path: Path) -> None:
    store = FeatureStore(tmp_path, (0,))
    for _ in range(2):
        store.put("ab12", IDS[:4], torch.zeros(3, 1, 4), torch.zeros(3, 4))
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["ab12.safetensors"]


def test_token_hashes_see_order_and_boundaries() -> None:
    assert len({token_hash(ids) for ids in ((1, 2), (2, 1), (12,), (1, 2, 0))}) == 4


def test_a_position_takes_its_tapped_layers_and_the_final_state() -> None:
    assert bytes_per_token(3, 576, torch.bfloat16) == 4 * 576 * 2
    assert bytes_per_token(3, 576, torch.float32) == 4 * 576 * 4

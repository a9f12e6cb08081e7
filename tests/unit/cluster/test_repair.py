"""A repair makes exactly what is damaged missing: shards, features, or both."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from eagleray.cluster.repair import repair_dataset
from eagleray.corpus.manifest import ContentKey, Manifest, read_manifest
from eagleray.corpus.sample import Sample
from eagleray.corpus.storage import LocalFolder
from eagleray.errors import DataError
from eagleray.targets.feature_store import FeatureStore

LAYERS = (1, 3)


@pytest.fixture
def dataset(tmp_path: Path, sample: Callable[..., Sample], publish: Callable[..., Manifest]) -> Path:
    shards = [[sample("aa1"), sample("aa2")], [sample("bb1")], [sample("cc1")]]
    publish(tmp_path / "dataset", shards)
    for one in (row for shard in shards for row in shard):
        put(store_of(tmp_path), one)
    return tmp_path / "dataset"


def store_of(root: Path) -> FeatureStore:
    return FeatureStore(root / "features", LAYERS)


def put(store: FeatureStore, sample: Sample) -> None:
    positions = len(sample.input_ids) - 1
    store.put(sample.sample_id, sample.input_ids, torch.randn(positions, 2, 4), torch.randn(positions, 4))


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)


def test_a_whole_dataset_is_left_as_it_is(dataset: Path, tmp_path: Path, content_key: ContentKey) -> None:
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    report = repair_dataset(LocalFolder(dataset), content_key, store_of(tmp_path))
    assert (report.manifest, report.shards, report.features) == ((), {}, {})
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_damaged_features_make_their_shard_missing_and_leave_its_file(
    dataset: Path, tmp_path: Path, content_key: ContentKey
) -> None:
    store = store_of(tmp_path)
    flip(store.path("aa2"))
    store.path("cc1").unlink()
    shards = {path.name: path.read_bytes() for path in dataset.glob("*.parquet")}
    report = repair_dataset(LocalFolder(dataset), content_key, store)
    assert sorted(report.features) == ["aa2", "cc1"]
    assert "crc32" in report.features["aa2"]
    assert read_manifest(LocalFolder(dataset)).missing() == [0, 2]
    assert not store.path("aa2").exists()
    assert [path.name for path in (store.folder / "quarantine").iterdir()] == ["aa2.safetensors.1"]
    assert {path.name: path.read_bytes() for path in dataset.glob("*.parquet")} == shards


def test_damaged_shards_are_found_without_features_too(dataset: Path, content_key: ContentKey) -> None:
    flip(dataset / "shard-000001.parquet")
    flip(dataset / "manifest.json")
    report = repair_dataset(LocalFolder(dataset), content_key, None)
    assert (len(report.manifest), list(report.shards)) == (1, [1])
    assert read_manifest(LocalFolder(dataset)).missing() == [1]


def test_a_dataset_of_another_recipe_is_left_alone(dataset: Path, content_key: ContentKey) -> None:
    flip(dataset / "shard-000001.parquet")
    with pytest.raises(DataError, match="dtype was 'float32', now 'bfloat16'"):
        repair_dataset(LocalFolder(dataset), content_key.model_copy(update={"dtype": "bfloat16"}), None)
    assert read_manifest(LocalFolder(dataset)).missing() == []


def test_nothing_distilled_yet_is_nothing_to_repair(tmp_path: Path, content_key: ContentKey) -> None:
    report = repair_dataset(LocalFolder(tmp_path / "none"), content_key, None)
    assert (report.manifest, report.shards) == ((), {})

"""Damage is found, moved aside and made missing; what is whole stays."""

from collections.abc import Callable
from pathlib import Path

import pytest

from eagleray.corpus.journal import JournalEntry, publish_entry
from eagleray.corpus.manifest import ContentKey, Manifest, open_manifest, read_copy, read_manifest
from eagleray.corpus.repair import find_damage, quarantine_shards, recover_manifest
from eagleray.corpus.sample import Sample
from eagleray.corpus.sealed import seal
from eagleray.corpus.shards import shard_name, write_shard
from eagleray.corpus.storage import LocalFolder
from eagleray.errors import DataError
from eagleray.settings import fingerprint


def flip(path: Path, offset: int = -20) -> bytes:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)
    return bytes(content)


@pytest.fixture
def manifest(tmp_path: Path, sample: Callable[..., Sample], publish: Callable[..., Manifest]) -> Manifest:
    return publish(tmp_path, [[sample("a")], [sample("b")], [sample("c")]])


def test_damaged_shards_are_moved_aside_and_missing_and_whole_ones_stay(
    tmp_path: Path, manifest: Manifest
) -> None:
    evidence = flip(tmp_path / shard_name(1))
    (tmp_path / shard_name(2)).unlink()
    kept = (tmp_path / shard_name(0)).read_bytes()
    damage = find_damage(LocalFolder(tmp_path), manifest)
    assert sorted(damage) == [1, 2]
    assert "SHA-256" in damage[1]
    assert "not on disk" in damage[2]
    assert quarantine_shards(LocalFolder(tmp_path), manifest, damage).missing() == [1, 2]
    assert read_manifest(LocalFolder(tmp_path)).missing() == [1, 2]
    assert (tmp_path / "quarantine" / f"{shard_name(1)}.1").read_bytes() == evidence
    assert (tmp_path / shard_name(0)).read_bytes() == kept


def test_quarantine_never_writes_over_what_it_holds(
    tmp_path: Path, manifest: Manifest, sample: Callable[..., Sample]
) -> None:
    for _ in range(2):
        flip(tmp_path / shard_name(1))
        quarantine_shards(LocalFolder(tmp_path), manifest, find_damage(LocalFolder(tmp_path), manifest))
        write_shard(LocalFolder(tmp_path), 1, [sample("b")])
    assert {path.name for path in (tmp_path / "quarantine").iterdir()} == {
        f"{shard_name(1)}.1",
        f"{shard_name(1)}.2",
    }


@pytest.mark.parametrize("name", ["manifest.json", "manifest.backup.json"])
def test_one_damaged_copy_of_the_manifest_costs_nothing(
    tmp_path: Path, manifest: Manifest, name: str
) -> None:
    flip(tmp_path / name)
    recovered, problems = recover_manifest(LocalFolder(tmp_path))
    assert recovered == manifest
    assert len(problems) == (name == "manifest.json")
    assert [read_copy(LocalFolder(tmp_path), copy) for copy in ("manifest.json", "manifest.backup.json")] == [
        manifest
    ] * 2
    assert find_damage(LocalFolder(tmp_path), manifest) == {}


def test_a_deleted_manifest_comes_back_from_its_copy(tmp_path: Path, manifest: Manifest) -> None:
    (tmp_path / "manifest.json").unlink()
    assert recover_manifest(LocalFolder(tmp_path)) == (manifest, [])
    assert read_manifest(LocalFolder(tmp_path)) == manifest


def test_without_a_whole_manifest_everything_is_moved_and_nothing_deleted(
    tmp_path: Path, manifest: Manifest
) -> None:
    before = sorted(path.name for path in tmp_path.iterdir())
    flip(tmp_path / "manifest.json")
    flip(tmp_path / "manifest.backup.json")
    recovered, problems = recover_manifest(LocalFolder(tmp_path))
    assert recovered is None
    assert len(problems) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["quarantine"]
    assert (
        sorted(
            path.stem if path.suffix == ".1" else path.name for path in (tmp_path / "quarantine").iterdir()
        )
        == before
    )


def test_a_dataset_of_another_version_is_left_alone(tmp_path: Path, manifest: Manifest) -> None:
    (tmp_path / "manifest.json").write_bytes(seal({"future": 1}))
    with pytest.raises(DataError, match="not a manifest of this version"):
        recover_manifest(LocalFolder(tmp_path))
    assert not (tmp_path / "quarantine").exists()


def test_a_damaged_journal_entry_costs_its_shard_alone(
    tmp_path: Path, content_key: ContentKey, sample: Callable[..., Sample]
) -> None:
    storage = LocalFolder(tmp_path)
    open_manifest(storage, Manifest(key=content_key, planned_shards=3, planned_rows=3))
    for index in range(3):
        record = write_shard(storage, index, [sample(str(index))])
        publish_entry(storage, JournalEntry(dataset=fingerprint(content_key), index=index, shard=record))
    evidence = flip(tmp_path / "journal" / "shard-000001.json")
    manifest, problems = recover_manifest(storage)
    assert manifest is not None
    assert manifest.missing() == [1]
    assert len(problems) == 1
    assert read_manifest(storage) == manifest
    assert (tmp_path / "quarantine" / "shard-000001.json.1").read_bytes() == evidence

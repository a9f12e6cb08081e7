"""A folder is a folder, whichever file system holds it."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyarrow import fs

from eagleray.corpus.accounting import TruncationLedger
from eagleray.corpus.dataset import read_dataset
from eagleray.corpus.inspection import inspect_dataset
from eagleray.corpus.journal import JournalEntry, publish_entry
from eagleray.corpus.manifest import ContentKey, Manifest, open_manifest, read_manifest
from eagleray.corpus.repair import find_damage, quarantine_shards
from eagleray.corpus.sample import Sample
from eagleray.corpus.shards import write_shard
from eagleray.corpus.storage import LocalFolder, RemoteFolder, Storage, open_storage
from eagleray.errors import DataError
from eagleray.settings import fingerprint


def local(folder: Path) -> Storage:
    return open_storage(folder)


def uri(folder: Path) -> Storage:
    return open_storage(folder.as_uri())


def subtree(folder: Path) -> Storage:
    folder.mkdir(parents=True, exist_ok=True)
    return RemoteFolder(fs.SubTreeFileSystem(str(folder), fs.LocalFileSystem()), "data", "sub://data")


def in_memory(folder: Path) -> Storage:
    return RemoteFolder(fs._MockFileSystem(), "bucket/data", "mock://bucket/data")


def object_store(folder: Path) -> Storage:
    """A file appears when it is closed, as in S3: nothing is moved."""

    class Store(RemoteFolder):
        closes_atomically = True

        def _fill(self, path: str, content: bytes) -> None:
            self._filesystem.create_dir(str(Path(path).parent), recursive=True)
            super()._fill(path, content)

    return Store(fs._MockFileSystem(), "bucket/data", "mock://bucket/data")


@pytest.fixture(params=[local, uri, subtree, in_memory, object_store])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    opened: Storage = request.param(tmp_path / "folder")
    return opened


def test_what_is_written_is_read_listed_replaced_and_deleted(storage: Storage) -> None:
    assert storage.names() == storage.names("deep") == []
    for name, content in (("b", b"1"), ("deep/a", b"2"), ("b", b"3"), (".hidden", b"4")):
        storage.write(name, content)
    assert (storage.read("b"), storage.read("deep/a")) == (b"3", b"2")
    assert (storage.names(), storage.names("deep")) == (["b"], ["deep/a"])
    assert (storage.exists("b"), storage.exists("deep"), storage.exists("c")) == (True, False, False)
    storage.delete("b")
    storage.delete("b")
    with pytest.raises(FileNotFoundError):
        storage.read("b")
    storage.discard()
    assert storage.names("deep") == []


def test_moving_aside_never_writes_over(storage: Storage) -> None:
    for content in (b"1", b"2"):
        storage.write("journal/x", content)
        storage.move_aside("journal/x", "quarantine")
    assert storage.names("quarantine") == ["quarantine/x.1", "quarantine/x.2"]
    assert [storage.read(name) for name in storage.names("quarantine")] == [b"1", b"2"]


def test_only_what_a_killed_writer_left_is_swept(storage: Storage) -> None:
    for name in ("deep/.shard.parquet.77", "deep/shard.77", "deep/.keep"):
        storage.write(name, b"x")
    storage.sweep("deep")
    assert storage.names("deep") == ["deep/shard.77"]
    assert storage.exists("deep/.keep")
    assert not storage.exists("deep/.shard.parquet.77")


def test_a_dataset_is_begun_published_read_and_mended_anywhere(
    storage: Storage, content_key: ContentKey, sample: Callable[..., Sample]
) -> None:
    begun = Manifest(key=content_key, planned_shards=2, planned_rows=2)
    open_manifest(storage, begun)
    for index in range(2):
        record = write_shard(storage, index, [sample(f"s{index}")])
        publish_entry(storage, JournalEntry(dataset=fingerprint(content_key), index=index, shard=record))
    assert [one.sample_id for one in read_dataset(storage)[1]] == ["s0", "s1"]
    assert inspect_dataset(storage, {"uncut": TruncationLedger(None)}, 1).summary.rows == 2
    content = bytearray(storage.read("shard-000001.parquet"))
    content[-20] ^= 1
    storage.write("shard-000001.parquet", bytes(content))
    with pytest.raises(DataError, match="SHA-256"):
        read_dataset(storage)
    manifest = open_manifest(storage, begun)
    quarantine_shards(storage, manifest, find_damage(storage, manifest))
    assert read_manifest(storage).missing() == [1]
    assert storage.names("quarantine") == ["quarantine/shard-000001.parquet.1"]


def test_an_address_opens_again_what_it_is_the_address_of(tmp_path: Path) -> None:
    for opened in (local(tmp_path / "a"), uri(tmp_path / "b")):
        assert isinstance(opened, LocalFolder), "local folders are flushed, whatever they are called"
        opened.write("x", b"1")
        assert open_storage(opened.address).read("x") == b"1"


def test_an_address_that_nothing_understands_is_refused() -> None:
    with pytest.raises(DataError, match=r"nowhere://bucket.*distil\.dataset"):
        open_storage("nowhere://bucket")

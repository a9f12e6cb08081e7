"""Datasets on disk: what comes back, what is continued, and what is refused."""

import json
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from eagleray.corpus.dataset import read_dataset
from eagleray.corpus.journal import JournalEntry, publish_entry
from eagleray.corpus.manifest import (
    ContentKey,
    Manifest,
    fold_journal,
    open_manifest,
    read_copy,
    read_manifest,
    require_key,
    write_manifest,
)
from eagleray.corpus.prompt import Reject
from eagleray.corpus.sample import Sample
from eagleray.corpus.sealed import seal
from eagleray.corpus.shards import ShardRecord, read_shard, write_shard
from eagleray.corpus.storage import LocalFolder
from eagleray.errors import DataError
from eagleray.settings import fingerprint

MakeSample = Callable[..., Sample]
Publish = Callable[..., Manifest]


def entry(key: ContentKey, index: int, record: ShardRecord) -> JournalEntry:
    return JournalEntry(dataset=fingerprint(key), index=index, shard=record)


def files_of(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_samples_come_back_as_they_were_written_in_shard_order(
    tmp_path: Path, sample: MakeSample, publish: Publish
) -> None:
    shards = [[sample("a"), sample("b", 1, 4)], [sample("c", finish_reason="length")]]
    publish(tmp_path, shards, [Reject(origin="x", reason="y")])
    manifest, samples = read_dataset(LocalFolder(tmp_path))
    assert samples == [*shards[0], *shards[1]]
    assert (manifest.rows, manifest.rejected_rows) == (3, 1)
    assert [record.truncated_rows for record in manifest.shards.values()] == [0, 1]
    assert [record.supervised_tokens for record in manifest.shards.values()] == [6, 2]


def test_an_empty_shard_has_the_schema_of_a_full_one(tmp_path: Path) -> None:
    record = write_shard(LocalFolder(tmp_path), 0, [])
    assert read_shard(LocalFolder(tmp_path), record).samples == ()


def test_writing_a_shard_again_gives_the_same_bytes(tmp_path: Path, sample: MakeSample) -> None:
    first = write_shard(LocalFolder(tmp_path), 0, [sample("a")])
    assert write_shard(LocalFolder(tmp_path), 0, [sample("a")]) == first
    assert [path.name for path in tmp_path.iterdir()] == [first.file]


def test_every_one_of_two_hundred_flipped_bits_is_refused(
    tmp_path: Path, content_key: ContentKey, sample: MakeSample, publish: Publish
) -> None:
    shards = [[sample("a"), sample("b")], [sample("c")], [sample("d")]]
    publish(tmp_path, shards, [Reject(origin="x", reason="y")])
    storage = LocalFolder(tmp_path)
    for index in (0, 1):
        publish_entry(storage, entry(content_key, index, read_manifest(storage).shards[index]))
    files = sorted(
        [*tmp_path.glob("shard-*.parquet"), *tmp_path.glob("*/*.json"), tmp_path / "manifest.json"]
    )
    assert len(files) == 6
    generator = random.Random(20)
    for flip in range(200):
        path = files[flip % len(files)]
        whole = path.read_bytes()
        damaged = bytearray(whole)
        damaged[generator.randrange(len(whole))] ^= 1 << generator.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=f"{path.name}.*--repair"):
            read_dataset(storage)
        path.write_bytes(whole)
    assert len(read_dataset(storage)[1]) == 4


def test_rejects_travel_in_the_shard_of_their_prompts(tmp_path: Path, sample: MakeSample) -> None:
    rejects = (Reject(origin="caf\u00e9:3", reason='says "no"'), Reject(origin="b", reason=""))
    record = write_shard(LocalFolder(tmp_path), 4, [sample("a")], rejects)
    assert read_shard(LocalFolder(tmp_path), record).rejects == rejects
    assert (record.rejected_prompts, record.prompts) == (2, 3)


def test_a_missing_shard_and_an_unfinished_dataset_are_refused(
    tmp_path: Path, sample: MakeSample, publish: Publish
) -> None:
    manifest = publish(tmp_path, [[sample("a")]], planned_shards=2)
    assert manifest.missing() == [1]
    with pytest.raises(DataError, match="1 of 2 shards"):
        read_dataset(LocalFolder(tmp_path))
    (tmp_path / manifest.shards[0].file).unlink()
    with pytest.raises(DataError, match="not on disk"):
        read_shard(LocalFolder(tmp_path), manifest.shards[0])


def test_an_id_that_occurs_twice_is_refused(tmp_path: Path, sample: MakeSample, publish: Publish) -> None:
    publish(tmp_path, [[sample("a"), sample("b")], [sample("b")]])
    with pytest.raises(DataError, match=r"Sample b of shard-000001.parquet .* every id once"):
        read_dataset(LocalFolder(tmp_path))


def test_a_prompt_that_is_neither_sample_nor_reject_is_refused(
    tmp_path: Path, sample: MakeSample, publish: Publish
) -> None:
    manifest = publish(tmp_path, [[sample("a")]], [Reject(origin="x", reason="y")])
    write_manifest(LocalFolder(tmp_path), manifest.model_copy(update={"planned_rows": 3}))
    with pytest.raises(DataError, match="1 answered and 1 rejected of 3 prompts"):
        read_dataset(LocalFolder(tmp_path))


def test_a_rerun_continues_and_doubles_nothing(
    tmp_path: Path, content_key: ContentKey, sample: MakeSample
) -> None:
    storage, begun = LocalFolder(tmp_path), Manifest(key=content_key, planned_shards=2, planned_rows=2)
    open_manifest(storage, begun)
    publish_entry(storage, entry(content_key, 1, write_shard(storage, 1, [sample("b")])))
    # As after a kill between writing a shard and publishing it.
    write_shard(storage, 0, [sample("a")])
    assert read_manifest(storage).missing() == [0]
    assert open_manifest(storage, begun).missing() == [0]
    publish_entry(storage, entry(content_key, 0, write_shard(storage, 0, [sample("a")])))
    assert [one.sample_id for one in read_dataset(storage)[1]] == ["a", "b"]
    assert open_manifest(storage, begun).missing() == []
    before = files_of(tmp_path)
    assert open_manifest(storage, begun).missing() == []
    assert files_of(tmp_path) == before


def test_folding_the_journal_changes_what_nobody_reads(
    tmp_path: Path, content_key: ContentKey, sample: MakeSample
) -> None:
    storage = LocalFolder(tmp_path)
    open_manifest(storage, Manifest(key=content_key, planned_shards=3, planned_rows=3))
    for index in (2, 0):
        publish_entry(storage, entry(content_key, index, write_shard(storage, index, [sample(str(index))])))
    before = read_manifest(storage)
    assert sorted(before.shards) == [0, 2]
    assert fold_journal(storage) == read_manifest(storage) == read_copy(storage, "manifest.json") == before
    assert storage.names("journal") == []


def test_ten_writers_and_a_folding_reader_lose_and_double_nothing(
    tmp_path: Path, content_key: ContentKey, sample: MakeSample
) -> None:
    """S1: 1,000 tiny rows by ten writers, the journal folded meanwhile; all of it twice."""
    storage = LocalFolder(tmp_path)
    begun = Manifest(key=content_key, planned_shards=100, planned_rows=1000)

    def publish(index: int) -> None:
        rows = [sample(f"{index:02d}{row}") for row in range(10)]
        publish_entry(storage, entry(content_key, index, write_shard(storage, index, rows)))

    for _ in range(2):
        open_manifest(storage, begun)
        with ThreadPoolExecutor(10) as writers:
            written = [writers.submit(publish, index) for index in range(100)]
            while not all(one.done() for one in written):
                fold_journal(storage)
                read_manifest(storage)
        assert [one.exception() for one in written] == [None] * 100
        assert open_manifest(storage, begun).missing() == []
        assert len({one.sample_id for one in read_dataset(storage)[1]}) == 1000


def test_an_entry_of_another_dataset_or_shard_is_refused(
    tmp_path: Path, content_key: ContentKey, sample: MakeSample
) -> None:
    storage = LocalFolder(tmp_path)
    open_manifest(storage, Manifest(key=content_key, planned_shards=2, planned_rows=2))
    record = write_shard(storage, 0, [sample("a")])
    publish_entry(storage, entry(content_key.model_copy(update={"dtype": "bfloat16"}), 0, record))
    with pytest.raises(DataError, match=r"shard-000000.json belongs to dataset .*--repair"):
        read_manifest(storage)
    publish_entry(storage, entry(content_key, 0, record))
    (tmp_path / "journal" / "shard-000000.json").rename(tmp_path / "journal" / "shard-000001.json")
    with pytest.raises(DataError, match=r"shard-000001.json speaks of shard 0.*--repair"):
        read_manifest(storage)


def test_what_killed_writers_left_is_swept_and_nothing_else(tmp_path: Path, content_key: ContentKey) -> None:
    storage, begun = LocalFolder(tmp_path), Manifest(key=content_key, planned_shards=1, planned_rows=1)
    open_manifest(storage, begun)
    (tmp_path / "journal").mkdir()
    keep = [".gitignore", "notes.12", ".manifest.json.bak", "journal/.keep"]
    leftovers = [".shard-000000.parquet.4711", ".manifest.json.1", "journal/.shard-000000.json.99"]
    for name in (*keep, *leftovers):
        (tmp_path / name).write_text("x")
    open_manifest(storage, begun)
    found = set(files_of(tmp_path))
    assert found.issuperset(keep)
    assert found.isdisjoint(leftovers)


def test_a_rerun_under_other_conditions_is_refused_and_touches_nothing(
    tmp_path: Path, content_key: ContentKey, sample: MakeSample, publish: Publish
) -> None:
    publish(tmp_path, [[sample("a")]])
    before = files_of(tmp_path)
    other = content_key.model_copy(update={"prompts_hash": "q"})
    with pytest.raises(DataError, match=r"prompts_hash was 'p', now 'q': the training prompts"):
        open_manifest(LocalFolder(tmp_path), Manifest(key=other, planned_shards=1, planned_rows=1))
    assert files_of(tmp_path) == before


def test_shards_that_no_manifest_names_are_never_written_over(
    tmp_path: Path, content_key: ContentKey, sample: MakeSample
) -> None:
    write_shard(LocalFolder(tmp_path), 0, [sample("a")])
    with pytest.raises(DataError, match=r"1 files of shards \(shard-000000.parquet, ...\) but no manifest"):
        open_manifest(LocalFolder(tmp_path), Manifest(key=content_key, planned_shards=1, planned_rows=1))


def test_other_conditions_are_refused_with_the_fields_named(tmp_path: Path, content_key: ContentKey) -> None:
    with pytest.raises(DataError) as caught:
        require_key(
            LocalFolder(tmp_path),
            content_key,
            content_key.model_copy(update={"max_new_tokens": 9, "target_hash": "u"}),
        )
    assert "max_new_tokens was 8, now 9: the longest answer (distil.max_new_tokens) changed" in str(
        caught.value
    )
    assert "target_hash was 't', now 'u': the weights" in str(caught.value)
    assert "dtype" not in str(caught.value)


def test_every_part_of_the_key_says_what_it_stands_for() -> None:
    assert [name for name, field in ContentKey.model_fields.items() if not field.description] == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"planned_shards": 1}', '{\n "sha256": "0",\n}'])
def test_a_damaged_manifest_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(DataError, match=r"damaged: .*--repair"):
        read_manifest(LocalFolder(tmp_path))


def test_a_whole_manifest_of_another_version_is_not_called_damaged(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_bytes(seal({"planned_shards": 1, "planned_rows": 1, "future": 2}))
    with pytest.raises(DataError, match=r"not a manifest of this version .*see future, key"):
        read_manifest(LocalFolder(tmp_path))


def test_a_folder_without_manifest_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="distil job"):
        read_manifest(LocalFolder(tmp_path))


def test_manifest_on_disk_is_readable_by_people(tmp_path: Path, sample: MakeSample, publish: Publish) -> None:
    publish(tmp_path, [[sample("a")]])
    content = json.loads((tmp_path / "manifest.json").read_text())
    assert content["shards"]["0"]["rows"] == 1
    assert content["key"]["sampling"]["temperature"] == 0


def test_supervised_tokens_after_a_cut(sample: MakeSample) -> None:
    row = sample("a", prompt=3, answer=4)
    assert [row.supervised_tokens(limit) for limit in (None, 7, 5, 3, 0)] == [4, 4, 2, 0, 0]

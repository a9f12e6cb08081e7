import json
from pathlib import Path

import pytest

from eagleray.corpus.dataset import read_dataset
from eagleray.corpus.manifest import ContentKey, Manifest, read_manifest, require_key, write_manifest
from eagleray.corpus.sample import Sample
from eagleray.corpus.shards import read_shard, write_shard
from eagleray.errors import DataError

KEY = ContentKey(
    encoder_version=1,
    prompts_hash="p",
    target_hash="t",
    tokenizer_hash="k",
    template_hash="c",
    dtype="float32",
    sampling="greedy",
    max_new_tokens=8,
    rows_per_shard=2,
)


def sample(name: str, prompt: int = 3, answer: int = 2, finish_reason: str = "stop") -> Sample:
    return Sample(
        sample_id=name,
        input_ids=tuple(range(prompt + answer)),
        supervised=((prompt, prompt + answer),),
        prompt_tokens=prompt,
        answer_tokens=answer,
        finish_reason=finish_reason,
        category="code",
        source="test",
    )


def publish(folder: Path, shards: list[list[Sample]], planned: int | None = None) -> Manifest:
    manifest = Manifest(key=KEY, planned_shards=planned or len(shards), planned_rows=sum(map(len, shards)))
    for index, samples in enumerate(shards):
        manifest = manifest.with_shard(index, write_shard(folder, index, samples), ())
    write_manifest(folder, manifest)
    return manifest


def test_samples_come_back_as_they_were_written_in_shard_order(tmp_path: Path) -> None:
    shards = [[sample("a"), sample("b", 1, 4)], [sample("c", finish_reason="length")]]
    publish(tmp_path, shards)
    manifest, samples = read_dataset(tmp_path)
    assert samples == [*shards[0], *shards[1]]
    assert manifest.rows == 3
    assert [record.truncated_rows for record in manifest.shards.values()] == [0, 1]
    assert [record.supervised_tokens for record in manifest.shards.values()] == [6, 2]


def test_an_empty_shard_has_the_schema_of_a_full_one(tmp_path: Path) -> None:
    record = write_shard(tmp_path, 0, [])
    assert read_shard(tmp_path, record) == []


def test_writing_a_shard_again_gives_the_same_bytes(tmp_path: Path) -> None:
    first = write_shard(tmp_path, 0, [sample("a")])
    assert write_shard(tmp_path, 0, [sample("a")]) == first
    assert [path.name for path in tmp_path.iterdir()] == [first.file]


@pytest.mark.parametrize("offset", [0, 40, -20])
def test_a_flipped_bit_is_refused(tmp_path: Path, offset: int) -> None:
    record = write_shard(tmp_path, 0, [sample("a")])
    path = tmp_path / record.file
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match="SHA-256"):
        read_shard(tmp_path, record)


def test_a_missing_shard_and_an_unfinished_dataset_are_refused(tmp_path: Path) -> None:
    manifest = publish(tmp_path, [[sample("a")]], planned=2)
    assert manifest.missing() == [1]
    with pytest.raises(DataError, match="1 of 2 shards"):
        read_dataset(tmp_path)
    (tmp_path / manifest.shards[0].file).unlink()
    with pytest.raises(DataError, match="not on disk"):
        read_shard(tmp_path, manifest.shards[0])


def test_other_conditions_are_refused_with_the_fields_named(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        require_key(tmp_path, KEY, KEY.model_copy(update={"max_new_tokens": 9, "target_hash": "u"}))
    assert "max_new_tokens was 8, now 9" in str(caught.value)
    assert "target_hash was 't', now 'u'" in str(caught.value)
    assert "dtype" not in str(caught.value)


@pytest.mark.parametrize("text", ["{", "[]", '{"planned_shards": 1}'])
def test_a_damaged_manifest_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(DataError, match="damaged"):
        read_manifest(tmp_path)


def test_a_folder_without_manifest_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="distil job"):
        read_manifest(tmp_path)


def test_manifest_on_disk_is_readable_by_people(tmp_path: Path) -> None:
    publish(tmp_path, [[sample("a")]])
    content = json.loads((tmp_path / "manifest.json").read_text())
    assert content["shards"]["0"]["rows"] == 1
    assert content["key"]["sampling"] == "greedy"


def test_supervised_tokens_after_a_cut() -> None:
    row = sample("a", prompt=3, answer=4)
    assert [row.supervised_tokens(limit) for limit in (None, 7, 5, 3, 0)] == [4, 4, 2, 0, 0]

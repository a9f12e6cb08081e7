"""What a dataset is said to hold."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from eagleray.corpus.accounting import TruncationLedger
from eagleray.corpus.inspection import inspect_dataset, segments
from eagleray.corpus.manifest import Manifest
from eagleray.corpus.prompt import Reject
from eagleray.corpus.sample import Sample
from eagleray.corpus.storage import LocalFolder
from eagleray.corpus.summary import length_histogram, summarise_dataset

MakeSample = Callable[..., Sample]
Publish = Callable[..., Manifest]


def test_samples_and_rejects_together_are_the_prompts(
    tmp_path: Path, sample: MakeSample, publish: Publish
) -> None:
    shards = [
        [sample("a", 3, 2), sample("b", 30, 10, finish_reason="length")],
        [sample("c", 4, 1, category="m")],
    ]
    rejects = [Reject(origin=str(n), reason=f"the prompt has {n} tokens") for n in (90, 1234)]
    manifest = publish(tmp_path, shards, rejects)
    summary = summarise_dataset(LocalFolder(tmp_path), manifest)
    assert (summary.rows, summary.rejected_rows, summary.planned_rows) == (3, 2, 5)
    assert (summary.tokens, summary.supervised_tokens) == (50, 13)
    assert summary.supervised_ratio == 13 / 50
    assert summary.rejects_by_reason == {"the prompt has N tokens": 2}
    assert summary.categories["code"].model_dump() == {
        "rows": 2,
        "tokens": 45,
        "supervised_tokens": 12,
        "cut_answers": 1,
    }
    assert summary.finish_reasons == {"stop": 2, "length": 1}
    assert summary.answer_origins == {"target": 3}
    assert summary.mismatched_ratio == 0.0
    assert summary.length_histogram == {"1-16": 2, "17-32": 0, "33-48": 1}


def test_the_share_of_mismatched_ids_is_of_prompts_not_of_samples(
    tmp_path: Path, sample: MakeSample, publish: Publish
) -> None:
    def of(origin: str, *parts: int) -> list[Sample]:
        return [sample(f"{origin}{part}{parts}", part=part, answer_origin=origin) for part in parts]

    shards = [
        [*of("retokenised", 0), *of("mismatched", 0, 1), *of("target", 0)],
        [sample("a", answer_origin="target"), sample("b", part=1, answer_origin="mismatched")],
    ]
    manifest = publish(tmp_path, shards)
    assert [shard.mismatched_prompts for shard in manifest.shards.values()] == [1, 1]
    summary = summarise_dataset(LocalFolder(tmp_path), manifest)
    assert summary.answer_origins == {"retokenised": 1, "mismatched": 3, "target": 2}
    assert summary.mismatched_ratio == 2 / 4


def test_a_damaged_shard_is_named_and_the_others_are_counted(
    tmp_path: Path, sample: MakeSample, publish: Publish
) -> None:
    manifest = publish(tmp_path, [[sample("a")], [sample("b")]])
    (tmp_path / manifest.shards[0].file).write_bytes(b"PAR1")
    summary = summarise_dataset(LocalFolder(tmp_path), manifest)
    assert list(summary.damaged_shards) == ["shard-000000.parquet"]
    assert summary.rows == 1


def test_an_unfinished_dataset_can_be_looked_at(tmp_path: Path, sample: MakeSample, publish: Publish) -> None:
    publish(tmp_path, [[sample(name) for name in "abcdef"]], planned_shards=3)
    found = inspect_dataset(
        LocalFolder(tmp_path), {"short": TruncationLedger(4), "uncut": TruncationLedger(None)}, 3
    )
    assert (found.summary.shards, found.summary.planned_shards) == (1, 3)
    assert [one.sample_id for one in found.samples] == ["a", "c", "e"]
    assert found.truncation["short"].total.lost_rows == 6
    assert found.truncation["uncut"].kept_ratio == 1.0


def test_an_empty_dataset_has_no_lengths_and_no_account(tmp_path: Path, publish: Publish) -> None:
    publish(tmp_path, [], planned_shards=1)
    found = inspect_dataset(LocalFolder(tmp_path), {"uncut": TruncationLedger(None)}, 3)
    assert found.summary.lengths is None
    assert (found.truncation, found.samples) == ({}, ())


def test_an_id_that_occurs_twice_is_counted(tmp_path: Path, sample: MakeSample, publish: Publish) -> None:
    manifest = publish(tmp_path, [[sample("a")], [sample("a")]])
    assert summarise_dataset(LocalFolder(tmp_path), manifest).duplicate_ids == 1


def test_segments_cover_every_token_once_in_order(sample: MakeSample) -> None:
    row = sample("a", 3, 7, supervised=((3, 5), (5, 6), (8, 9)))
    assert segments(row) == [
        (0, 3, False),
        (3, 5, True),
        (5, 6, True),
        (6, 8, False),
        (8, 9, True),
        (9, 10, False),
    ]


def test_reasons_that_differ_in_numbers_count_together_most_frequent_first(
    tmp_path: Path, publish: Publish
) -> None:
    rejects = [Reject(origin="x", reason=reason) for reason in ("b", "a 1", "a 22")]
    manifest = publish(tmp_path, [[]], rejects)
    summary = summarise_dataset(LocalFolder(tmp_path), manifest)
    assert list(summary.rejects_by_reason.items()) == [("a N", 2), ("b", 1)]


def test_a_histogram_of_nothing_is_empty() -> None:
    assert length_histogram(Counter()) == {}

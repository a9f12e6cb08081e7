"""Reading a finished dataset: every shard checked against the manifest before a row is used."""

from collections.abc import Iterator
from pathlib import Path

from eagleray.corpus.manifest import Manifest, read_manifest
from eagleray.corpus.sample import Sample
from eagleray.corpus.shards import read_shard
from eagleray.errors import DataError


def read_dataset(folder: Path) -> tuple[Manifest, list[Sample]]:
    """Read all samples in shard order.

    Raises:
        DataError: The dataset is unfinished, a shard does not agree with the manifest, an id occurs
            twice, or a prompt is neither a sample nor a reject.
    """
    manifest = read_manifest(folder)
    if not manifest.complete:
        raise DataError(
            f"The dataset in {folder} is unfinished: {len(manifest.shards)} of "
            f"{manifest.planned_shards} shards. Run the distil job of this recipe again; "
            "it makes only what is missing."
        )
    if manifest.unaccounted_rows:
        raise DataError(
            f"The dataset in {folder} has {manifest.answered_prompts} answered and "
            f"{manifest.rejected_rows} rejected of {manifest.planned_rows} prompts; expected all of them. "
            "Start the stage anew with --redo distil."
        )
    return manifest, list(iter_samples(folder, manifest))


def iter_samples(folder: Path, manifest: Manifest) -> Iterator[Sample]:
    """Yield the samples of the published shards in order; one shard is in memory at a time.

    Raises:
        DataError: As `read_dataset`, when the shard at fault is reached.
    """
    seen: set[str] = set()
    for index in sorted(manifest.shards):
        for sample in read_shard(folder, manifest.shards[index]):
            if sample.sample_id in seen:
                raise DataError(
                    f"Sample {sample.sample_id} of {manifest.shards[index].file} in {folder} occurs a second "
                    "time; expected every id once. Start the stage anew with --redo distil."
                )
            seen.add(sample.sample_id)
            yield sample

"""Reading a finished dataset: every shard checked against the manifest before a row is used."""

from collections.abc import Iterator

from eagleray.corpus.manifest import Manifest, read_manifest
from eagleray.corpus.sample import Sample
from eagleray.corpus.shards import read_shard
from eagleray.corpus.storage import Storage
from eagleray.errors import DataError


def read_dataset(storage: Storage) -> tuple[Manifest, list[Sample]]:
    """Read all samples in shard order.

    Raises:
        DataError: As `read_complete_manifest`; or a shard does not agree with the manifest, or an id
            occurs twice.
    """
    manifest = read_complete_manifest(storage)
    return manifest, list(iter_samples(storage, manifest))


def read_complete_manifest(storage: Storage) -> Manifest:
    """Read the manifest of a dataset of which everything is made.

    Raises:
        DataError: The dataset is unfinished, or a prompt is neither a sample nor a reject.
    """
    manifest = read_manifest(storage)
    if not manifest.complete:
        raise DataError(
            f"The dataset in {storage} is unfinished: {len(manifest.shards)} of "
            f"{manifest.planned_shards} shards. Run the distil job of this recipe again; "
            "it makes only what is missing."
        )
    if manifest.unaccounted_rows:
        raise DataError(
            f"The dataset in {storage} has {manifest.answered_prompts} answered and "
            f"{manifest.rejected_rows} rejected of {manifest.planned_rows} prompts; expected all of them. "
            "Start the stage anew with --redo distil."
        )
    return manifest


def iter_samples(storage: Storage, manifest: Manifest) -> Iterator[Sample]:
    """Yield the samples of the published shards in order; one shard is in memory at a time.

    Raises:
        DataError: As `read_dataset`, when the shard at fault is reached.
    """
    seen: set[str] = set()
    for index in sorted(manifest.shards):
        for sample in read_shard(storage, manifest.shards[index]).samples:
            if sample.sample_id in seen:
                raise DataError(
                    f"Sample {sample.sample_id} of {manifest.shards[index].file} in {storage} occurs a "
                    "second time; expected every id once. Start the stage anew with --redo distil."
                )
            seen.add(sample.sample_id)
            yield sample

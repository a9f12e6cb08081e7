"""Reading a finished dataset: every shard checked against the manifest before a row is used."""

from pathlib import Path

from eagleray.corpus.manifest import Manifest, read_manifest
from eagleray.corpus.sample import Sample
from eagleray.corpus.shards import read_shard
from eagleray.errors import DataError


def read_dataset(folder: Path) -> tuple[Manifest, list[Sample]]:
    """Read all samples in shard order.

    Raises:
        DataError: The dataset is unfinished, or a shard does not agree with the manifest.
    """
    manifest = read_manifest(folder)
    if not manifest.complete:
        raise DataError(
            f"The dataset in {folder} is unfinished: {len(manifest.shards)} of "
            f"{manifest.planned_shards} shards. Run the distil job of this recipe again; "
            "it makes only what is missing."
        )
    samples = [
        sample for index in sorted(manifest.shards) for sample in read_shard(folder, manifest.shards[index])
    ]
    return manifest, samples

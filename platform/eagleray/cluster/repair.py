"""Repairing what a run has distilled: find the damage, move it aside, let the distil stage make it again.

Reads every shard and every feature file once. Needs no cluster.
"""

from collections.abc import Mapping

from eagleray.corpus.manifest import ContentKey, Manifest, require_key, write_manifest
from eagleray.corpus.repair import QUARANTINE, find_damage, quarantine_shards, recover_manifest
from eagleray.corpus.shards import read_shard
from eagleray.corpus.storage import Storage
from eagleray.errors import DataError
from eagleray.files import move_aside
from eagleray.settings import Settings
from eagleray.targets.feature_store import REMEDY, FeatureStore


class RepairReport(Settings):
    """What a repair found. Everything named here is made again by the next distil."""

    manifest: tuple[str, ...] = ()
    """What was wrong with copies of the manifest and entries of the journal."""
    shards: dict[int, str] = {}
    """Shard index -> what was wrong."""
    features: dict[str, str] = {}
    """Sample id -> what was wrong with its features."""


def repair_dataset(storage: Storage, key: ContentKey, store: FeatureStore | None) -> RepairReport:
    """Move damaged shards and features aside and take their shards out of the manifest.

    A shard whose features alone are damaged stays where it is: made again, it has the same bytes.

    Args:
        store: The features that belong to the dataset; None when none were captured.

    Raises:
        DataError: The dataset was made under other conditions, or by another version; it is left alone.
    """
    manifest, problems = recover_manifest(storage)
    if manifest is None:
        return RepairReport(manifest=tuple(problems))
    require_key(storage, manifest.key, key)
    damaged = find_damage(storage, manifest)
    manifest = quarantine_shards(storage, manifest, damaged)
    features: dict[str, str] = {}
    if store is not None:
        features = _mend_features(storage, manifest, store)
    return RepairReport(manifest=tuple(problems), shards=damaged, features=features)


def _mend_features(storage: Storage, manifest: Manifest, store: FeatureStore) -> dict[str, str]:
    problems: dict[str, str] = {}
    incomplete = set()
    for index, record in sorted(manifest.shards.items()):
        for sample in read_shard(storage, record).samples:
            try:
                store.get(sample.sample_id, sample.input_ids)
            except DataError as error:
                problems[sample.sample_id] = str(error).removesuffix(REMEDY).strip()
                incomplete.add(index)
    _move_features(problems, store)
    if incomplete:
        write_manifest(storage, manifest.without(incomplete))
    return problems


def _move_features(problems: Mapping[str, str], store: FeatureStore) -> None:
    for sample_id in problems:
        path = store.path(sample_id)
        if path.exists():
            move_aside(path, store.folder / QUARANTINE)

"""Mending a dataset: what is damaged is moved aside, never deleted, and counts as missing from then on.

Nothing is made here. The next run of the distil job makes the missing shards and keeps all others.
"""

from collections.abc import Iterable

from eagleray.corpus.journal import JOURNAL, ManifestDamageError, entry_name, read_entry
from eagleray.corpus.manifest import (
    BACKUP_NAME,
    MANIFEST_NAME,
    Manifest,
    fold_journal,
    read_copy,
    stray_files,
    write_manifest,
)
from eagleray.corpus.shards import REDO, read_shard
from eagleray.corpus.storage import Storage
from eagleray.errors import DataError
from eagleray.settings import fingerprint

QUARANTINE = "quarantine"
"""Folder inside a dataset that holds what was moved aside."""


def recover_manifest(storage: Storage) -> tuple[Manifest | None, list[str]]:
    """Read a copy of the manifest that is whole, and the journal, after moving damaged files aside.

    Without a whole copy nothing says what the shards are, so they are moved aside with it. A damaged
    entry of the journal costs its shard alone.

    Returns:
        The manifest, None if no copy is whole; and what is wrong, one sentence per damaged file.

    Raises:
        DataError: Another version wrote the manifest; nothing is moved then.
    """
    problems: list[str] = []
    manifest = _whole_copy(storage, problems)
    if manifest is None:
        for name in stray_files(storage):
            storage.move_aside(name, QUARANTINE)
        return None, problems
    write_manifest(storage, manifest)
    dataset = fingerprint(manifest.key)
    for name in storage.names(JOURNAL):
        if problem := _entry_problem(storage, name, dataset):
            problems.append(problem)
            storage.move_aside(name, QUARANTINE)
    return fold_journal(storage), problems


def find_damage(storage: Storage, manifest: Manifest) -> dict[int, str]:
    """Read every published shard; returns what is wrong by shard index."""
    damage = {}
    for index, record in sorted(manifest.shards.items()):
        try:
            read_shard(storage, record)
        except DataError as error:
            damage[index] = str(error).removesuffix(REDO).strip()
    return damage


def quarantine_shards(storage: Storage, manifest: Manifest, indices: Iterable[int]) -> Manifest:
    """Move the files of these shards aside and publish a manifest in which they are missing.

    Files go first: after a kill in between, the manifest names a missing file, which the next repair
    finds; the other way round, the next run of the job would write over the evidence.
    """
    indices = set(indices)
    for index in indices:
        if storage.exists(manifest.shards[index].file):
            storage.move_aside(manifest.shards[index].file, QUARANTINE)
    mended = manifest.without(indices)
    write_manifest(storage, mended)
    return mended


def _whole_copy(storage: Storage, problems: list[str]) -> Manifest | None:
    for name in (MANIFEST_NAME, BACKUP_NAME):
        if not storage.exists(name):
            continue
        try:
            return read_copy(storage, name)
        except ManifestDamageError as error:
            problems.append(str(error))
            storage.move_aside(name, QUARANTINE)
    return None


def _entry_problem(storage: Storage, name: str, dataset: str) -> str:
    try:
        entry = read_entry(storage, name)
    except ManifestDamageError as error:
        return str(error)
    if entry is None or (entry.dataset == dataset and entry_name(entry.index) == name):
        return ""
    return f"{storage.locate(name)} belongs to shard {entry.index} of another dataset, {entry.dataset}."

"""Mending a dataset: what is damaged is moved aside, never deleted, and counts as missing from then on.

Nothing is made here. The next run of the distil job makes the missing shards and keeps all others.
"""

from collections.abc import Iterable
from pathlib import Path

from eagleray.corpus.manifest import (
    BACKUP_NAME,
    MANIFEST_NAME,
    Manifest,
    ManifestDamageError,
    read_manifest,
    write_manifest,
)
from eagleray.corpus.shards import REDO, read_shard
from eagleray.errors import DataError
from eagleray.files import move_aside

QUARANTINE = "quarantine"
"""Folder inside a dataset that holds what was moved aside."""


def recover_manifest(folder: Path) -> tuple[Manifest | None, list[str]]:
    """Read a copy of the manifest that is whole, after moving damaged copies aside.

    Without a whole copy nothing says what the shards are, so they are moved aside with it.

    Returns:
        The manifest, None if no copy is whole; and what is wrong, one sentence per damaged copy.

    Raises:
        DataError: Another version wrote the manifest; nothing is moved then.
    """
    problems = []
    for name in (MANIFEST_NAME, BACKUP_NAME):
        if not (folder / name).exists():
            continue
        try:
            manifest = read_manifest(folder, name)
        except ManifestDamageError as error:
            problems.append(str(error))
            move_aside(folder / name, folder / QUARANTINE)
            continue
        write_manifest(folder, manifest)
        return manifest, problems
    for path in sorted(folder.glob("shard-*.parquet")):
        move_aside(path, folder / QUARANTINE)
    return None, problems


def find_damage(folder: Path, manifest: Manifest) -> dict[int, str]:
    """Read every published shard; returns what is wrong by shard index."""
    damage = {}
    for index, record in sorted(manifest.shards.items()):
        try:
            read_shard(folder, record)
        except DataError as error:
            damage[index] = str(error).removesuffix(REDO).strip()
    return damage


def quarantine_shards(folder: Path, manifest: Manifest, indices: Iterable[int]) -> Manifest:
    """Move the files of these shards aside and publish a manifest in which they are missing.

    Files go first: after a kill in between, the manifest names a missing file, which the next repair
    finds; the other way round, the next run of the job would write over the evidence.
    """
    indices = set(indices)
    for index in indices:
        path = folder / manifest.shards[index].file
        if path.exists():
            move_aside(path, folder / QUARANTINE)
    mended = manifest.without(indices)
    write_manifest(folder, mended)
    return mended

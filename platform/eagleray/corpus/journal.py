"""The journal of a dataset: one small sealed file per published shard, until the manifest takes them in.

Whoever has made a shard publishes it with one write, so that nobody has to write the whole manifest again
for every shard, and so that writers on many machines never wait for each other.
"""

from pydantic import ValidationError

from eagleray.corpus.sealed import SealError, seal, unseal
from eagleray.corpus.shards import ShardRecord
from eagleray.corpus.storage import Storage
from eagleray.errors import DataError
from eagleray.settings import Settings

JOURNAL = "journal"


class ManifestDamageError(DataError):
    """A part of a manifest or journal is not what was written."""


class JournalEntry(Settings):
    """One published shard."""

    dataset: str
    """Fingerprint of the content key of the dataset that the shard belongs to."""
    index: int
    shard: ShardRecord


def entry_name(index: int) -> str:
    """Name of the entry for the shard with this index."""
    return f"{JOURNAL}/shard-{index:06d}.json"


def publish_entry(storage: Storage, entry: JournalEntry) -> None:
    """Publish a shard whose file is on disk."""
    storage.write(entry_name(entry.index), seal(entry.model_dump(mode="json")))


def read_entry(storage: Storage, name: str) -> JournalEntry | None:
    """Read and check an entry; None if it is not, or no longer, there.

    Raises:
        ManifestDamageError: A byte of it changed.
    """
    try:
        return JournalEntry.model_validate(unseal(storage.read(name)))
    except FileNotFoundError:
        return None
    except (SealError, ValidationError) as error:
        reason = error if isinstance(error, SealError) else "it is not an entry of this version"
        raise ManifestDamageError(
            f"{storage.locate(name)} is damaged: {reason}. Run the distil job with --repair: "
            "it makes this one shard again and keeps the others."
        ) from None


def read_journal(storage: Storage) -> list[JournalEntry]:
    """All entries. Read before the manifest, no shard is missed that is taken in meanwhile.

    Raises:
        ManifestDamageError: An entry is damaged or not where it belongs.
    """
    found = []
    for name in storage.names(JOURNAL):
        entry = read_entry(storage, name)
        if entry is None:
            continue
        if entry_name(entry.index) != name:
            raise ManifestDamageError(
                f"{storage.locate(name)} speaks of shard {entry.index}. Run the distil job with --repair: "
                "it moves the entry aside."
            )
        found.append(entry)
    return found

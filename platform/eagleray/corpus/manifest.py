"""The manifest of a dataset: which shards are published, and everything their content depends on.

The content key is compared field by field. A dataset whose key differs from what a recipe asks
for is refused with the differing fields named, so a stale cache cannot be read by accident.
"""

import json
from pathlib import Path

from pydantic import ValidationError

from eagleray.corpus.files import write_json_atomically
from eagleray.corpus.prompt import Reject
from eagleray.corpus.shards import ShardRecord
from eagleray.errors import DataError
from eagleray.settings import Settings, fingerprint

MANIFEST_NAME = "manifest.json"


class ContentKey(Settings):
    """Everything that changes the content of a dataset."""

    encoder_version: int
    """Raised by hand whenever the code that turns prompts into samples changes what it writes."""
    prompts_hash: str
    target_hash: str
    tokenizer_hash: str
    template_hash: str
    dtype: str
    sampling: str
    max_new_tokens: int
    rows_per_shard: int


class Manifest(Settings):
    """The state of a dataset on disk."""

    key: ContentKey
    planned_shards: int
    planned_rows: int
    shards: dict[int, ShardRecord] = {}
    rejects: dict[int, tuple[Reject, ...]] = {}
    """By shard index, so that redoing a shard replaces its rejects too."""

    @property
    def complete(self) -> bool:
        """True when every planned shard is published."""
        return len(self.shards) == self.planned_shards

    @property
    def rows(self) -> int:
        """Samples in the published shards."""
        return sum(shard.rows for shard in self.shards.values())

    @property
    def rejected_rows(self) -> int:
        """Prompts of the published shards that gave no sample."""
        return sum(len(rejected) for rejected in self.rejects.values())

    def missing(self) -> list[int]:
        """Indices of the shards still to be made."""
        return [index for index in range(self.planned_shards) if index not in self.shards]

    def content_hash(self) -> str:
        """Hash of every published byte: two datasets with the same hash hold the same samples."""
        return fingerprint([self.shards[index].sha256 for index in sorted(self.shards)])

    def facts(self) -> dict[str, int]:
        """Counts for reports."""
        shards = self.shards.values()
        return {
            "rows": self.rows,
            "rejected_rows": self.rejected_rows,
            "shards": len(self.shards),
            "supervised_tokens": sum(shard.supervised_tokens for shard in shards),
            "truncated_rows": sum(shard.truncated_rows for shard in shards),
            "size_bytes": sum(shard.size_bytes for shard in shards),
        }

    def with_shard(self, index: int, record: ShardRecord, rejected: tuple[Reject, ...]) -> "Manifest":
        """The manifest after publishing one shard."""
        return self.model_copy(
            update={"shards": {**self.shards, index: record}, "rejects": {**self.rejects, index: rejected}}
        )


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Publish the manifest atomically."""
    write_json_atomically(folder / MANIFEST_NAME, manifest.model_dump(mode="json"))


def read_manifest(folder: Path) -> Manifest:
    """Read and check a manifest.

    Raises:
        DataError: There is none, or it is damaged.
    """
    path = folder / MANIFEST_NAME
    try:
        return Manifest.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise DataError(
            f"{folder} holds no dataset (no {MANIFEST_NAME}). Run the distil job of this recipe first."
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError, ValidationError) as error:
        raise DataError(
            f"{path} is damaged: {type(error).__name__}. Move the folder away and distil again."
        ) from None


def require_key(folder: Path, found: ContentKey, wanted: ContentKey) -> None:
    """Refuse a dataset made under other conditions.

    Raises:
        DataError: Names each field that differs, with both values.
    """
    differing = [
        f"{name} was {getattr(found, name)!r}, now {getattr(wanted, name)!r}"
        for name in ContentKey.model_fields
        if getattr(found, name) != getattr(wanted, name)
    ]
    if differing:
        raise DataError(
            f"The dataset in {folder} was made under other conditions: {'; '.join(differing)}. "
            "Restore the recipe, give the run another run.name, or delete the folder to distil anew."
        )

"""The manifest of a dataset: which shards are published, and everything their content depends on.

The content key is compared field by field. A dataset whose key differs from what a recipe asks
for is refused with the differing fields named, so a stale cache cannot be read by accident. The
manifest lies on disk twice, each copy under its own seal: one damaged copy costs nothing.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from eagleray.corpus.config import AnswersFrom
from eagleray.corpus.prompt import Reject
from eagleray.corpus.sealed import SealError, read_sealed_json, write_sealed_json
from eagleray.corpus.shards import ShardRecord
from eagleray.errors import DataError
from eagleray.settings import Settings, fingerprint

MANIFEST_NAME = "manifest.json"
BACKUP_NAME = "manifest.backup.json"


class ManifestDamageError(DataError):
    """A copy of a manifest is not what was written."""


class ContentKey(Settings):
    """Everything that changes the content of a dataset. Descriptions are clauses of the refusal message."""

    encoder_version: int
    """the code that turns prompts into samples"""
    prompts_hash: str
    """the training prompts or their order (prompts.train, prompts.held_out)"""
    target_hash: str
    """the weights or configuration of the target (target.model, target.revision)"""
    tokenizer_hash: str
    """the tokenizer of the target"""
    template_hash: str
    """the chat template of the target"""
    template_arguments: dict[str, bool | int | float | str]
    """the arguments of the chat template (prompts.template_arguments)"""
    answers: AnswersFrom
    """who writes the answers (distil.answers)"""
    supervised_turns: Literal["all", "last"]
    """which answers are learnt (distil.supervision.turns)"""
    supervised_thinking: bool
    """whether thoughts are learnt (distil.supervision.thinking)"""
    dtype: str
    """the target's numbers (target.dtype)"""
    sampling: str
    """how answers are drawn (distil)"""
    max_new_tokens: int
    """the longest answer (distil.max_new_tokens)"""
    rows_per_shard: int
    """the partition into shards (distil.rows_per_shard)"""


class Manifest(Settings):
    """The state of a dataset on disk."""

    key: ContentKey
    regime: dict[str, Any] = {}
    """What answered the prompts, for people and for comparisons: target, engine and its version."""
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
    def answered_prompts(self) -> int:
        """Prompts of the published shards that gave a sample or several."""
        return sum(shard.answered_prompts for shard in self.shards.values())

    @property
    def rejected_rows(self) -> int:
        """Prompts of the published shards that gave no sample."""
        return sum(len(rejected) for rejected in self.rejects.values())

    @property
    def unaccounted_rows(self) -> int:
        """Planned prompts of a complete dataset that are neither a sample nor a reject: always 0."""
        return self.planned_rows - self.answered_prompts - self.rejected_rows

    def missing(self) -> list[int]:
        """Indices of the shards still to be made."""
        return [index for index in range(self.planned_shards) if index not in self.shards]

    def content_hash(self) -> str:
        """Hash of every published byte: two datasets with the same hash hold the same samples."""
        return fingerprint([self.shards[index].sha256 for index in sorted(self.shards)])

    def with_shard(self, index: int, record: ShardRecord, rejected: tuple[Reject, ...]) -> "Manifest":
        """The manifest after publishing one shard."""
        return self.model_copy(
            update={"shards": {**self.shards, index: record}, "rejects": {**self.rejects, index: rejected}}
        )

    def without(self, indices: Collection[int]) -> "Manifest":
        """The manifest with these shards missing, to be made again."""
        return self.model_copy(
            update={
                "shards": {index: shard for index, shard in self.shards.items() if index not in indices},
                "rejects": {index: rows for index, rows in self.rejects.items() if index not in indices},
            }
        )


def open_manifest(folder: Path, begun: Manifest) -> Manifest:
    """Continue the dataset in `folder`, or begin it as `begun`, a manifest without shards.

    Raises:
        DataError: The folder holds a damaged dataset, one of other conditions, or shards that no
            manifest names.
    """
    if (folder / MANIFEST_NAME).exists():
        manifest = read_manifest(folder)
        require_key(folder, manifest.key, begun.key)
        return manifest
    if strays := sorted(path.name for path in folder.glob("shard-*.parquet")):
        raise DataError(
            f"{folder} holds {len(strays)} shards ({strays[0]}, ...) but no {MANIFEST_NAME}, so what they "
            "are is unknown. Run the distil job with --repair, or give the run another run.name."
        )
    write_manifest(folder, begun)
    return begun


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Publish both copies, each atomically: the one that is read comes last, so the other is never behind."""
    content = manifest.model_dump(mode="json")
    for name in (BACKUP_NAME, MANIFEST_NAME):
        write_sealed_json(folder / name, content)


def read_manifest(folder: Path, name: str = MANIFEST_NAME) -> Manifest:
    """Read and check one copy of a manifest.

    Raises:
        ManifestDamageError: A byte of it changed.
        DataError: There is none, or another version wrote it.
    """
    path = folder / name
    try:
        return Manifest.model_validate(read_sealed_json(path))
    except FileNotFoundError:
        raise DataError(
            f"{folder} holds no dataset (no {name}). Run the distil job of this recipe first."
        ) from None
    except SealError as error:
        raise ManifestDamageError(
            f"{path} is damaged: {error}. Run the distil job with --repair: it takes the other copy "
            "of the manifest and keeps every shard that is whole."
        ) from None
    except ValidationError as error:
        fields = ", ".join(sorted({str(problem["loc"][0]) for problem in error.errors()}))
        raise DataError(
            f"{path} is whole, but not a manifest of this version of EagleRay (see {fields}). Use the "
            "version that wrote it, give the run another run.name, or start anew with --redo distil."
        ) from None


def require_key(folder: Path, found: ContentKey, wanted: ContentKey) -> None:
    """Refuse a dataset made under other conditions.

    Raises:
        DataError: Names each field that differs, with both values and what it stands for.
    """
    differing = [
        f"{name} was {getattr(found, name)!r}, now {getattr(wanted, name)!r}: {field.description} changed"
        for name, field in ContentKey.model_fields.items()
        if getattr(found, name) != getattr(wanted, name)
    ]
    if differing:
        raise DataError(
            f"The dataset in {folder} was made under other conditions ({'; '.join(differing)}). "
            "Restore the recipe, give the run another run.name, or start the stage anew with --redo distil."
        )

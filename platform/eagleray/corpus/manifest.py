"""The manifest of a dataset: which shards are published, and everything their content depends on.

The content key is compared field by field. A dataset whose key differs from what a recipe asks
for is refused with the differing fields named, so a stale cache cannot be read by accident. The
manifest lies on disk twice, each copy under its own seal: one damaged copy costs nothing. Shards that
were published since it was written are in the journal beside it; readers see both.
"""

from collections.abc import Collection, Mapping
from typing import Any, Literal

from pydantic import ValidationError

from eagleray.corpus.config import AnswerSettings, AnswersFrom, SupervisionConfig
from eagleray.corpus.journal import (
    JOURNAL,
    JournalEntry,
    ManifestDamageError,
    entry_name,
    read_journal,
)
from eagleray.corpus.sealed import SealError, seal, unseal
from eagleray.corpus.shards import ShardRecord
from eagleray.corpus.storage import Storage
from eagleray.errors import DataError
from eagleray.settings import Settings, fingerprint
from eagleray.speculation.config import SamplingConfig

MANIFEST_NAME = "manifest.json"
BACKUP_NAME = "manifest.backup.json"


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
    engine: str
    """what runs the target (engine, distil.engine)"""
    dtype: str
    """the target's numbers (target.dtype)"""
    sampling: SamplingConfig
    """how answers are drawn (distil.sampling)"""
    samples_per_prompt: int
    """the number of answers to a prompt (distil.samples_per_prompt)"""
    max_new_tokens: int
    """the longest answer (distil.max_new_tokens)"""
    by_category: dict[str, AnswerSettings]
    """how the prompts of a category are answered (distil.by_category)"""
    rows_per_shard: int
    """the partition into shards (distil.rows_per_shard)"""
    window_prompts: int
    """the prompts that are sorted by length together (distil.window_prompts)"""

    def answering(self, category: str) -> AnswerSettings:
        """How the prompts of a category are answered."""
        return self.by_category.get(category) or AnswerSettings(
            max_new_tokens=self.max_new_tokens,
            sampling=self.sampling,
            samples_per_prompt=self.samples_per_prompt,
        )

    @property
    def supervision(self) -> SupervisionConfig:
        """Which parts of the answers are learnt."""
        return SupervisionConfig(turns=self.supervised_turns, thinking=self.supervised_thinking)


class Manifest(Settings):
    """The state of a dataset on disk."""

    key: ContentKey
    regime: dict[str, Any] = {}
    """What answered the prompts, for people and for comparisons: target, engine and its version."""
    planned_shards: int
    planned_rows: int
    shards: dict[int, ShardRecord] = {}

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
        return sum(shard.rejected_prompts for shard in self.shards.values())

    @property
    def mismatched_prompts(self) -> int:
        """Prompts with an answer whose ids are not certainly those that the target emitted."""
        return sum(shard.mismatched_prompts for shard in self.shards.values())

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

    def with_shards(self, shards: Mapping[int, ShardRecord]) -> "Manifest":
        """The manifest after publishing these shards."""
        return self.model_copy(update={"shards": {**self.shards, **shards}})

    def without(self, indices: Collection[int]) -> "Manifest":
        """The manifest with these shards missing, to be made again."""
        kept = {index: shard for index, shard in self.shards.items() if index not in indices}
        return self.model_copy(update={"shards": kept})


def open_manifest(storage: Storage, begun: Manifest) -> Manifest:
    """Continue the dataset in a folder, or begin it as `begun`, a manifest without shards.

    What killed writers left half-written is deleted, and the journal is folded into the manifest.

    Raises:
        DataError: The folder holds a damaged dataset, one of other conditions, or shards that no
            manifest names.
    """
    sweep_dataset(storage)
    if storage.exists(MANIFEST_NAME):
        require_key(storage, read_copy(storage, MANIFEST_NAME).key, begun.key)
        return fold_journal(storage)
    if strays := stray_files(storage):
        raise DataError(
            f"{storage} holds {len(strays)} files of shards ({strays[0]}, ...) but no {MANIFEST_NAME}, so "
            "what they are is unknown. Run the distil job with --repair, or give the run another run.name."
        )
    write_manifest(storage, begun)
    return begun


def stray_files(storage: Storage) -> list[str]:
    """Shards and journal entries: what only a manifest explains."""
    shards = [name for name in storage.names() if name.startswith("shard-") and name.endswith(".parquet")]
    return shards + storage.names(JOURNAL)


def write_manifest(storage: Storage, manifest: Manifest) -> None:
    """Publish both copies, each atomically: the one that is read comes last, so the other is never behind."""
    content = seal(manifest.model_dump(mode="json"))
    for name in (BACKUP_NAME, MANIFEST_NAME):
        storage.write(name, content)


def sweep_dataset(storage: Storage) -> None:
    """Delete what killed writers left half-written; nobody may be writing."""
    for folder in ("", JOURNAL):
        storage.sweep(folder)


def fold_journal(storage: Storage) -> Manifest:
    """Take the journal into the manifest, then delete it. A kill in between leaves shards named twice, alike.

    Raises:
        DataError: As `read_manifest`.
    """
    entries = read_journal(storage)
    manifest = _join(storage, read_copy(storage, MANIFEST_NAME), entries)
    if entries:
        write_manifest(storage, manifest)
    for entry in entries:
        storage.delete(entry_name(entry.index))
    return manifest


def read_manifest(storage: Storage) -> Manifest:
    """Read and check a manifest and the journal beside it.

    Raises:
        ManifestDamageError: A byte of it changed.
        DataError: There is none, or another version wrote it.
    """
    entries = read_journal(storage)
    return _join(storage, read_copy(storage, MANIFEST_NAME), entries)


def read_copy(storage: Storage, name: str) -> Manifest:
    """Read and check one copy of a manifest, without the journal.

    Raises:
        ManifestDamageError: A byte of it changed.
        DataError: There is none, or another version wrote it.
    """
    path = storage.locate(name)
    try:
        return Manifest.model_validate(unseal(storage.read(name)))
    except FileNotFoundError:
        raise DataError(
            f"{storage} holds no dataset (no {name}). Run the distil job of this recipe first."
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


def _join(storage: Storage, manifest: Manifest, entries: Collection[JournalEntry]) -> Manifest:
    dataset = fingerprint(manifest.key)
    for entry in entries:
        if entry.dataset != dataset:
            raise ManifestDamageError(
                f"{storage.locate(entry_name(entry.index))} belongs to dataset {entry.dataset}; this is "
                f"{dataset}. Run the distil job with --repair: it moves the entry aside."
            )
    return manifest.with_shards({entry.index: entry.shard for entry in entries})


def require_key(storage: Storage, found: ContentKey, wanted: ContentKey) -> None:
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
            f"The dataset in {storage} was made under other conditions ({'; '.join(differing)}). "
            "Restore the recipe, give the run another run.name, or start the stage anew with --redo distil."
        )

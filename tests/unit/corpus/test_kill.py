"""Killed before any file operation and started again, a dataset comes out as if nothing had happened."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from eagleray.corpus.dataset import read_dataset
from eagleray.corpus.journal import JournalEntry, publish_entry
from eagleray.corpus.manifest import ContentKey, Manifest, fold_journal, open_manifest
from eagleray.corpus.sample import Sample
from eagleray.corpus.shards import write_shard
from eagleray.corpus.storage import LocalFolder
from eagleray.settings import fingerprint


class KilledError(BaseException):
    """Stands for `kill -9`: nothing may catch it, and nothing may tidy up after it."""


class Killer:
    """Ends the process before one of its file operations."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, operation: int | None):
        self.left = operation
        self.dead = False
        for owner, name in ((os, "fsync"), (os, "replace"), (Path, "unlink")):
            monkeypatch.setattr(owner, name, self._guard(getattr(owner, name)))

    def _guard(self, real: Callable[..., object]) -> Callable[..., object]:
        def guarded(*arguments: object, **options: object) -> object:
            if self.dead:
                return None
            if self.left is not None:
                self.dead = self.left == 0
                self.left -= 1
                if self.dead:
                    raise KilledError
            return real(*arguments, **options)

        return guarded


def make(folder: Path, begun: Manifest, shards: list[list[Sample]]) -> list[int]:
    """Make what is missing, as the distil job does; returns which shards that were."""
    storage = LocalFolder(folder)
    missing = open_manifest(storage, begun).missing()
    for count, index in enumerate(missing, start=1):
        record = write_shard(storage, index, shards[index])
        publish_entry(storage, JournalEntry(dataset=fingerprint(begun.key), index=index, shard=record))
        if count % 2 == 0:
            fold_journal(storage)
    fold_journal(storage)
    return missing


def published(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_kill_before_any_file_operation_loses_and_doubles_nothing(
    tmp_path: Path, content_key: ContentKey, sample: Callable[..., Sample], monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = [[sample(f"{index}{row}", 3, 2 + row) for row in range(2)] for index in range(3)]
    begun = Manifest(key=content_key, planned_shards=3, planned_rows=6)
    make(tmp_path / "whole", begun, shards)
    whole = published(tmp_path / "whole")
    operation, killed = 0, True
    while killed:
        folder = tmp_path / f"killed-{operation}"
        with monkeypatch.context() as patch:
            Killer(patch, operation)
            try:
                make(folder, begun, shards)
                killed = False
            except KilledError:
                operation += 1
        finished = open_manifest(LocalFolder(folder), begun).shards
        remade = make(folder, begun, shards)
        assert set(remade).isdisjoint(finished)
        assert published(folder) == whole
        assert [one.sample_id for one in read_dataset(LocalFolder(folder))[1]] == [
            "00",
            "01",
            "10",
            "11",
            "20",
            "21",
        ]
    # Four operations for each of three shards, three entries and two copies of three manifests; three
    # deletions of entries.
    assert operation == 4 * (3 + 3 + 2 * 3) + 3

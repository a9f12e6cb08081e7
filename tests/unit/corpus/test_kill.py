"""Killed before any file operation and started again, a dataset comes out as if nothing had happened."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from eagleray.corpus.dataset import read_dataset
from eagleray.corpus.manifest import ContentKey, Manifest, open_manifest, write_manifest
from eagleray.corpus.sample import Sample
from eagleray.corpus.shards import write_shard


class KilledError(BaseException):
    """Stands for `kill -9`: nothing may catch it, and nothing may tidy up after it."""


class Killer:
    """Ends the process before one of its file operations."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, operation: int | None):
        self.left = operation
        self.dead = False
        for owner, name in ((os, "fsync"), (os, "replace"), (Path, "unlink")):
            monkeypatch.setattr(owner, name, self._guard(getattr(owner, name), counts=name != "unlink"))

    def _guard(self, real: Callable[..., object], counts: bool) -> Callable[..., object]:
        def guarded(*arguments: object, **options: object) -> object:
            if self.dead:
                return None
            if counts and self.left is not None:
                self.dead = self.left == 0
                self.left -= 1
                if self.dead:
                    raise KilledError
            return real(*arguments, **options)

        return guarded


def make(folder: Path, begun: Manifest, shards: list[list[Sample]]) -> list[int]:
    """Make what is missing, as the distil job does; returns which shards that were."""
    manifest = open_manifest(folder, begun)
    missing = manifest.missing()
    for index in missing:
        manifest = manifest.with_shard(index, write_shard(folder, index, shards[index]), ())
        write_manifest(folder, manifest)
    return missing


def published(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}


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
        finished = open_manifest(folder, begun).shards
        remade = make(folder, begun, shards)
        assert set(remade).isdisjoint(finished)
        assert published(folder) == whole
        assert [one.sample_id for one in read_dataset(folder)[1]] == ["00", "01", "10", "11", "20", "21"]
    # Three operations for each of three shards and of two copies of four manifests.
    assert operation == 3 * (3 + 2 * 4)

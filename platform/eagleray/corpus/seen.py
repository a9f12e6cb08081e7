"""Which prompts came before, for any number of prompts: an index on disk with a bounded share of memory."""

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from eagleray.corpus.prompt import Prompt

CACHE_KIB = 16 * 1024
"""Pages of the index that are kept in memory."""


class SeenPrompts:
    """Content keys of prompts, with the source and the number of each."""

    def __init__(self, database: sqlite3.Connection):
        self._database = database
        # What is lost with a kill is never read again: the index lives as long as one drawing of prompts.
        for setting in ("journal_mode=OFF", "synchronous=OFF", f"cache_size=-{CACHE_KIB}"):
            database.execute(f"PRAGMA {setting}")
        database.execute("CREATE TABLE seen (key INTEGER PRIMARY KEY, source TEXT, prompts INTEGER)")
        database.execute("BEGIN")

    def __contains__(self, prompt: Prompt) -> bool:
        return self._find(_key(prompt)) is not None

    def enter(self, prompt: Prompt) -> tuple[int, str]:
        """Note a prompt; returns how many of its content came before, and the source of the first."""
        key = _key(prompt)
        found = self._find(key)
        if found is None:
            self._database.execute("INSERT INTO seen VALUES (?, ?, 1)", (key, prompt.source))
            return 0, prompt.source
        self._database.execute("UPDATE seen SET prompts = prompts + 1 WHERE key = ?", (key,))
        return found

    def _find(self, key: int) -> tuple[int, str] | None:
        row: tuple[int, str] | None = self._database.execute(
            "SELECT prompts, source FROM seen WHERE key = ?", (key,)
        ).fetchone()
        return row


@contextlib.contextmanager
def open_seen(folder: Path) -> Iterator[SeenPrompts]:
    """An empty index in a file of `folder` that is gone after the block."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f".seen.{os.getpid()}"
    path.unlink(missing_ok=True)
    try:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
            yield SeenPrompts(database)
    finally:
        path.unlink(missing_ok=True)


def _key(prompt: Prompt) -> int:
    """The content key as SQLite's signed 64 bits."""
    return int(prompt.content_key, 16) - 2**63

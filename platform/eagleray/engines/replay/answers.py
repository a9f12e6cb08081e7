"""Stored answers by the ids of their prompt: a table on disk, of any size, a few pages of it in memory."""

import hashlib
import json
import sqlite3
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from eagleray.corpus.dataset import read_complete_manifest
from eagleray.corpus.sample import Sample
from eagleray.corpus.shards import read_shard
from eagleray.corpus.storage import open_storage
from eagleray.engines.base import FinishReason
from eagleray.errors import DataError

CACHE_KIB = 32 * 1024
"""Pages of the table that are kept in memory."""

REMEDY = "Change distil.engine.source."


@dataclass(frozen=True, kw_only=True)
class StoredAnswer:
    """What was once emitted for a prompt."""

    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    finish_reason: FinishReason


class AnswerTable:
    """Answers of a source. Its file belongs to this process alone and is gone with it."""

    def __init__(self, answers: Iterable[StoredAnswer]):
        # The empty name is SQLite's own temporary file: on disk once it outgrows the cache, and never left.
        self._database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        for setting in ("journal_mode=OFF", "synchronous=OFF", f"cache_size=-{CACHE_KIB}"):
            self._database.execute(f"PRAGMA {setting}")
        self._database.execute(
            "CREATE TABLE answers (number INTEGER PRIMARY KEY, prompt, ids, finish_reason)"
        )
        self._database.execute("BEGIN")
        rows = (
            (number, _key(one.prompt_ids), array("i", one.answer_ids).tobytes(), one.finish_reason)
            for number, one in enumerate(answers)
        )
        self._database.executemany("INSERT INTO answers VALUES (?, ?, ?, ?)", rows)
        self._database.execute("CREATE INDEX by_prompt ON answers (prompt, number)")
        (self.count,) = self._database.execute("SELECT count(*) FROM answers").fetchone()

    def find(self, prompt_ids: Sequence[int], seed: int) -> tuple[tuple[int, ...], FinishReason] | None:
        """The answer to a prompt; of several, the one that the seed points at."""
        key = _key(prompt_ids)
        (found,) = self._database.execute("SELECT count(*) FROM answers WHERE prompt = ?", (key,)).fetchone()
        if not found:
            return None
        return self._fetch("prompt = ? ORDER BY number LIMIT 1 OFFSET ?", key, seed % found)

    def any(self, prompt_ids: Sequence[int], seed: int) -> tuple[tuple[int, ...], FinishReason]:
        """Some answer, the same for the same prompt and seed. There must be one."""
        place = int.from_bytes(_key((*prompt_ids, seed % 2**31)), "little")
        return self._fetch("number = ?", place % self.count)

    def _fetch(self, condition: str, *values: object) -> tuple[tuple[int, ...], FinishReason]:
        ids, finish_reason = self._database.execute(
            f"SELECT ids, finish_reason FROM answers WHERE {condition}", values
        ).fetchone()
        return tuple(array("i", ids)), finish_reason


def read_answers(source: str) -> Iterator[StoredAnswer]:
    """Stream the answers of a dataset or a JSON Lines file.

    Raises:
        DataError: It cannot be read, or does not hold whole answers.
    """
    if source.endswith(".jsonl"):
        yield from _from_lines(Path(source))
        return
    storage = open_storage(source)
    manifest = read_complete_manifest(storage)
    if manifest.key.supervised_turns != "all" or not manifest.key.supervised_thinking:
        raise DataError(
            f"The dataset in {source} does not say where every answer begins: it was made with supervision "
            f"turns {manifest.key.supervised_turns!r}, thinking {manifest.key.supervised_thinking}. Replay "
            "one made with turns 'all' and thinking true, or change distil.engine.source."
        )
    for index in sorted(manifest.shards):
        for sample in read_shard(storage, manifest.shards[index]).samples:
            yield from _of_sample(sample)


def _of_sample(sample: Sample) -> Iterator[StoredAnswer]:
    for number, (start, end) in enumerate(sample.supervised, start=1):
        last = number == len(sample.supervised)
        yield StoredAnswer(
            prompt_ids=sample.input_ids[:start],
            answer_ids=sample.input_ids[start:end],
            finish_reason="length" if last and sample.finish_reason == "length" else "stop",
        )


def _from_lines(path: Path) -> Iterator[StoredAnswer]:
    try:
        with path.open("rb") as stream:
            for number, line in enumerate(stream, start=1):
                yield _of_line(line, f"Line {number} of {path}")
    except OSError as error:
        raise DataError(f"Answers file {path} cannot be read: {error}. {REMEDY}") from None


def _of_line(line: bytes, place: str) -> StoredAnswer:
    try:
        row = json.loads(line)
        return StoredAnswer(
            prompt_ids=tuple(row["prompt_ids"]),
            answer_ids=tuple(row["answer_ids"]),
            finish_reason=row.get("finish_reason", "stop"),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{place} holds no answer ({error!r}); expected an object with prompt_ids and answer_ids. "
            f"{REMEDY}"
        ) from None


def _key(prompt_ids: Sequence[int]) -> bytes:
    return hashlib.blake2b(array("q", prompt_ids).tobytes(), digest_size=16).digest()

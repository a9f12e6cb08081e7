"""The prompts of a run as a file: one JSON object a line, in an order that never changes.

The file is the working store. Nobody holds its rows: whoever needs some reads those, by number.
"""

import hashlib
import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from pydantic import ValidationError

from eagleray.corpus.config import AnswersFrom
from eagleray.corpus.prompt import Prompt, content_id
from eagleray.corpus.prompt_files import parse_prompt, spell_prompt
from eagleray.corpus.sealed import SealError, seal, unseal
from eagleray.files import replacing
from eagleray.settings import Settings

MARK_ROWS = 1024
"""Rows between two places of the file that are known by their byte; reading begins at one of them."""


class PromptTable(Settings):
    """A handle on prompts in a file: small, whatever their number, and good in any process."""

    path: Path
    rows: int
    marks: tuple[int, ...]
    """Byte at which every `MARK_ROWS`-th row begins."""
    content_hash: str
    """Of what the prompts contribute to a dataset, and of their order."""
    sha256: str
    """Of the file."""
    categories: dict[str, int]
    """Prompts by category."""
    rejects: int = 0
    """Rows of the sources that gave no prompt, and duplicates that were dropped."""
    duplicates: int = 0
    """Prompts that came before, dropped or kept."""
    made_from: str = ""
    """Fingerprint of all that the file was made from."""

    def iterate(self, start: int = 0) -> Iterator[Prompt]:
        """Yield the prompts from a row on."""
        return map(parse_prompt, self._lines(start))

    def read(self, start: int, stop: int) -> list[Prompt]:
        """The prompts of rows [start, stop)."""
        return [prompt for prompt, _ in zip(self.iterate(start), range(stop - start), strict=False)]

    def sample(self, count: int, seed: int = 0) -> Iterator[Prompt]:
        """Yield all prompts, or a uniform sample of `count` of them in their order."""
        if self.rows <= count:
            yield from self.iterate()
            return
        chosen = iter(sorted(random.Random(seed).sample(range(self.rows), count)))
        wanted = next(chosen)
        for row, line in enumerate(self._lines(0)):
            if row == wanted:
                yield parse_prompt(line)
                wanted = next(chosen, -1)

    def _lines(self, start: int) -> Iterator[bytes]:
        if start >= self.rows:
            return
        with self.path.open("rb") as stream:
            stream.seek(self.marks[start // MARK_ROWS])
            for _ in range(start % MARK_ROWS):
                stream.readline()
            yield from stream


class PromptsHash:
    """Hash of what prompts contribute to a dataset, and of their order, taken one by one."""

    def __init__(self, answers: AnswersFrom):
        self._answers = answers
        self._digest = hashlib.sha256()

    def add(self, prompt: Prompt) -> None:
        """Take the next prompt."""
        self._digest.update(json.dumps([content_id(prompt, self._answers), prompt.category]).encode())

    def hex(self) -> str:
        """Of all prompts so far, 16 hexadecimal digits."""
        return self._digest.hexdigest()[:16]


def prompts_hash(prompts: Iterable[Prompt], answers: AnswersFrom) -> str:
    """Hash of prompts that are at hand."""
    found = PromptsHash(answers)
    for prompt in prompts:
        found.add(prompt)
    return found.hex()


class PromptTableWriter:
    """Writes the file of a table row by row."""

    def __init__(self, stream: BinaryIO, answers: AnswersFrom):
        self._stream = stream
        self._hash = PromptsHash(answers)
        self._digest = hashlib.sha256()
        self._marks: list[int] = []
        self._bytes = 0
        self._categories: Counter[str] = Counter()

    @property
    def rows(self) -> int:
        """Rows written."""
        return self._categories.total()

    def add(self, prompt: Prompt) -> None:
        """Write the next row."""
        line = spell_prompt(prompt).encode()
        if self.rows % MARK_ROWS == 0:
            self._marks.append(self._bytes)
        self._stream.write(line)
        self._digest.update(line)
        self._hash.add(prompt)
        self._bytes += len(line)
        self._categories[prompt.category] += 1

    def table(self, path: Path) -> PromptTable:
        """The handle on what was written, which lies or will lie at `path`."""
        return PromptTable(
            path=path,
            rows=self.rows,
            marks=tuple(self._marks),
            content_hash=self._hash.hex(),
            sha256=self._digest.hexdigest(),
            categories=dict(self._categories),
        )


def write_table(path: Path, prompts: Iterable[Prompt], answers: AnswersFrom = "regenerate") -> PromptTable:
    """Write prompts to a file and return the handle on it."""
    with replacing(path) as aside, aside.open("wb") as stream:
        writer = PromptTableWriter(stream, answers)
        for prompt in prompts:
            writer.add(prompt)
    return writer.table(path)


def save_handle(table: PromptTable) -> None:
    """Keep the handle beside its file, so that the next start need not make the file again."""
    with replacing(_handle_path(table.path)) as aside:
        aside.write_bytes(seal(table.model_dump(mode="json")))


def find_table(path: Path, made_from: str) -> PromptTable | None:
    """The table at `path` if it was made from the same, and every byte of it is as it was written."""
    with suppress(FileNotFoundError, SealError, ValidationError):
        table = PromptTable.model_validate(unseal(_handle_path(path).read_bytes()))
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        if (table.made_from, table.sha256) == (made_from, digest):
            return table.model_copy(update={"path": path})
    return None


def _handle_path(path: Path) -> Path:
    return path.with_suffix(".table.json")

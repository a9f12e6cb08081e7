"""The two contracts of prompt files: how a container gives rows, and how a row gives a conversation.

A container (JSON Lines, a JSON array, Parquet) knows bytes and no chat. A row form (chat, plain prompt,
serving log) knows one layout of one row and no file. Each lives in a file of its own and is listed in
`catalog.py`. Both stream: a file of any size is read with the memory of a few rows.

What cannot be read is never skipped: a bad row is a `BadRow` of its container or a `RowError` of its
form, and becomes a reject. What makes the rest of a file unreadable is a `DataError`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BufferedReader
from typing import Any, Protocol

from eagleray.corpus.prompt import FinishReason, Message
from eagleray.errors import DataError

Row = Mapping[str, Any]


class RowError(DataError):
    """A row holds no conversation. The message is the reason alone, for reject tables."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BadRow:
    """A place in a file where a row should be and is not."""

    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Conversation:
    """The turns of one row, answers included."""

    messages: tuple[Message, ...]
    tools: str = ""
    """JSON list of the tools on offer; empty for none."""
    finish_reason: FinishReason = "stop"
    """How the last answer ended, where the row says so."""


class Container(Protocol):
    """A file format that holds rows."""

    suffixes: tuple[str, ...]
    """File endings, without that of a compression."""
    seekable: bool
    """True when rows are found by jumping in the file, which a compressed stream cannot do."""

    def rows(self, stream: BufferedReader) -> Iterator[tuple[int, Row | BadRow]]:
        """Yield each row with its number: the line in text files, else the rank; both from 1.

        Args:
            stream: The file's content, decompressed unless it must be seekable.

        Raises:
            DataError: The rest of the file cannot be read. The message names no file.
        """
        ...


class RowForm(Protocol):
    """One layout of a conversation in a row."""

    keys: str
    """The keys it looks for, as a person would write them."""

    def claims(self, row: Row) -> bool:
        """True when the row is laid out this way. Forms are asked in the order of the catalogue."""
        ...

    def read(self, row: Row) -> Conversation:
        """Read the conversation of a row that this form claims.

        Raises:
            RowError: It has none, or holds what a chat turn cannot carry.
        """
        ...

"""One JSON object a line. A line that is not JSON costs that line alone."""

import json
from collections.abc import Iterator
from io import BufferedReader
from typing import Any

from eagleray.corpus.inputs.base import BadRow, Row

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class JsonLines:
    """Rows of a JSON Lines file; blank lines are not rows."""

    suffixes: tuple[str, ...] = (".jsonl", ".ndjson", ".jsonlines", ".txt", ".log")
    seekable = False

    def rows(self, stream: BufferedReader) -> Iterator[tuple[int, Row | BadRow]]:
        for number, line in enumerate(stream, start=1):
            text = line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line
            if text.strip():
                yield number, parse_object(text)


def parse_object(text: bytes) -> Row | BadRow:
    """Parse the bytes of one row."""
    try:
        return require_object(json.loads(text.decode("utf-8")))
    except UnicodeDecodeError as error:
        return BadRow(reason=f"not UTF-8 (byte {error.start})")
    except (ValueError, RecursionError) as error:
        return BadRow(reason=f"not JSON: {error}")


def require_object(value: Any) -> Row | BadRow:
    """Pass an object on; name what any other value is."""
    return (
        value if isinstance(value, dict) else BadRow(reason=f"a JSON {type(value).__name__}, not an object")
    )

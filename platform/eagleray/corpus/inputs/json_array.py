"""A `.json` file: one array of rows, as chat dumps are often shared, or else JSON Lines.

The array is parsed element by element, so its size does not matter; a place that is not JSON ends it.
"""

import codecs
import json
from collections.abc import Iterator
from io import BufferedReader

from eagleray.corpus.inputs.base import BadRow, Row
from eagleray.corpus.inputs.json_lines import BYTE_ORDER_MARK, JsonLines, require_object
from eagleray.errors import DataError

CHUNK_BYTES = 1 << 18
_BLANK = " \t\r\n"


class JsonArray:
    """Rows of a JSON array."""

    suffixes: tuple[str, ...] = (".json",)
    seekable = False

    def rows(self, stream: BufferedReader) -> Iterator[tuple[int, Row | BadRow]]:
        head = stream.peek().removeprefix(BYTE_ORDER_MARK).lstrip()
        return _elements(stream) if head.startswith(b"[") else JsonLines().rows(stream)


def _elements(stream: BufferedReader) -> Iterator[tuple[int, Row | BadRow]]:
    chunks = _chunks(stream)
    text = next(chunks).lstrip("\ufeff" + _BLANK)[1:]
    decoder = json.JSONDecoder()
    number, separated = 1, True
    for chunk in chunks:
        text += chunk
        while text := text.lstrip(_BLANK):
            if text[0] == "]":
                return
            if text[0] == ",":
                text, separated = text[1:], True
                continue
            parsed = _parse_head(decoder, text, last=not chunk) if separated else None
            if parsed is None:
                break
            value, text = parsed
            yield number, require_object(value)
            number, separated = number + 1, False
    raise DataError(f"The JSON array breaks off or is not JSON after element {number - 1}")


def _parse_head(decoder: json.JSONDecoder, text: str, *, last: bool) -> tuple[object, str] | None:
    """Return the first element and the text after it, or None when it is not all there yet."""
    try:
        value, end = decoder.raw_decode(text)
    except (ValueError, RecursionError):
        return None
    # A number may go on in the next chunk: it is whole once something follows it.
    return (value, text[end:]) if end < len(text) or last else None


def _chunks(stream: BufferedReader) -> Iterator[str]:
    """Yield the text in ever larger chunks, so a huge element is not parsed anew too often; "" ends it."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    size = CHUNK_BYTES
    try:
        while content := stream.read(size):
            yield decoder.decode(content)
            size = min(size * 2, 1 << 26)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise DataError(f"The JSON array is not UTF-8: {error.reason}") from None
    yield ""

"""Prompt files in and out: whatever people have, as a stream of prompts and rejects.

Reading is strict row by row and patient file by file: a row that cannot be a prompt becomes a reject
that names its place, and prompts plus rejects always equal the rows that were read.
"""

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from eagleray.corpus.inputs.base import BadRow, Row, RowError
from eagleray.corpus.inputs.catalog import container_of, form_of
from eagleray.corpus.inputs.opening import container_suffix, describe_file, expand, open_rows
from eagleray.corpus.prompt import ASSISTANT, TOOL, Message, Prompt, Reject
from eagleray.errors import DataError
from eagleray.files import replacing

BytesListener = Callable[[int], None]
"""Told now and then how many bytes of the files were read so far, as they lie on disk."""

_TELL_ROWS = 256


def read_prompts(
    path: str | Path, category: str, licence: str, on_bytes: BytesListener | None = None
) -> Iterator[Prompt | Reject]:
    """Stream the prompts of all files that a path or glob names, in the order of their names.

    Args:
        category: Family of rows that do not name their own.
        licence: Licence of rows that do not name their own.

    Raises:
        DataError: A file is missing or damaged, or not one row of all files is a prompt.
    """
    found, first_reject = False, None
    for number, row, file in _read_files(expand(str(path)), on_bytes or (lambda _: None)):
        origin = f"{file}:{number}"
        try:
            item: Prompt | Reject = _to_prompt(row, origin, category, licence)
            found = True
        except RowError as error:
            item = Reject(origin=origin, reason=str(error))
            first_reject = first_reject or item
        yield item
    if not found:
        why = f"; first reason: {first_reject.origin}: {first_reject.reason}" if first_reject else ""
        raise DataError(
            f"Not one row of {path} is a prompt{why}. Each row must be an object like "
            '{"messages": [{"role": "user", "content": "..."}]} or {"prompt": "..."}.'
        )


def spell_prompt(prompt: Prompt) -> str:
    """One line of a file that `read_prompts` reads, and `parse_prompt` alike."""
    return json.dumps(_to_row(prompt), ensure_ascii=False) + "\n"


def parse_prompt(line: bytes) -> Prompt:
    """Read a line that `spell_prompt` wrote."""
    row = json.loads(line)
    return dataclasses.replace(_to_prompt(row, "", "", ""), repeat=row.get("repeat", 0))


class RejectTable:
    """A file of rejects, written row by row within a `with` block: one JSON object a line, with `origin` and
    `reason`. It replaces the old one at the end of the block."""

    def __init__(self, path: Path):
        self.path = path
        self.rows = 0
        self._files = ExitStack()

    def __enter__(self) -> "RejectTable":
        aside = self._files.enter_context(replacing(self.path))
        self._stream = self._files.enter_context(aside.open("w", encoding="utf-8"))
        return self

    def __exit__(self, *error: Any) -> bool | None:
        return self._files.__exit__(*error)

    def add(self, reject: Reject) -> None:
        """Write the next row."""
        row = {"origin": reject.origin, "reason": reject.reason}
        self._stream.write(json.dumps(row) + "\n")
        self.rows += 1


def _read_files(files: Sequence[str], on_bytes: BytesListener) -> Iterator[tuple[int, Row | BadRow, str]]:
    done_bytes = 0
    for file in files:
        for rows, (number, row, read_bytes) in enumerate(_read_rows(file)):
            if rows % _TELL_ROWS == 0:
                on_bytes(done_bytes + read_bytes)
            yield number, row, file
        done_bytes += describe_file(file).size_bytes
        on_bytes(done_bytes)


def _read_rows(file: str) -> Iterator[tuple[int, Row | BadRow, int]]:
    container = container_of(container_suffix(file), file)
    with open_rows(file, seekable=container.seekable) as (stream, position):
        try:
            for number, row in container.rows(stream):
                yield number, row, position()
        except RowError:
            raise
        except DataError as error:
            raise DataError(f"Prompts file {file}: {error}. Repair or remove it.") from None


def _to_prompt(row: Row | BadRow, origin: str, category: str, licence: str) -> Prompt:
    if isinstance(row, BadRow):
        raise RowError(row.reason)
    conversation = form_of(row).read(row)
    asked, given = _split(conversation.messages)
    labels = {"category": category, "source": origin, "licence": licence}
    for name in labels:
        value = row.get(name)
        if value is not None:
            if not isinstance(value, str):
                raise RowError(f"`{name}` is {value!r}, expected text")
            labels[name] = value
    prompt = Prompt(
        messages=asked,
        given=given,
        given_finish_reason=conversation.finish_reason,
        tools=conversation.tools,
        category=labels["category"],
        source=labels["source"],
        licence=labels["licence"],
    )
    _require_storable(prompt)
    return prompt


def _split(messages: tuple[Message, ...]) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """Split a conversation into what is asked and the answer that followed."""
    end = len(messages)
    while end and messages[end - 1].role == ASSISTANT:
        end -= 1
    asked = messages[:end]
    if not asked or not (asked[-1].content.strip() or asked[-1].role == TOOL):
        raise RowError("no text to answer: the last turn before the answer is empty or missing")
    if all(message.role == "system" for message in asked):
        raise RowError("only system turns: nothing asks for an answer")
    return asked, messages[end:]


def _require_storable(prompt: Prompt) -> None:
    texts = [prompt.category, prompt.source, prompt.licence, prompt.tools]
    for message in prompt.messages + prompt.given:
        texts += [message.role, message.content, message.reasoning, message.name, message.tool_call_id]
        texts += [text for call in message.tool_calls for text in (call.name, call.arguments, call.call_id)]
    try:
        "".join(texts).encode("utf-8")
    except UnicodeEncodeError:
        raise RowError("holds a lone surrogate, which no file or tokenizer can store") from None


def _to_row(prompt: Prompt) -> dict[str, Any]:
    optional = {
        "tools": json.loads(prompt.tools) if prompt.tools else None,
        "finish_reason": prompt.given_finish_reason if prompt.given_finish_reason != "stop" else None,
        "repeat": prompt.repeat or None,
    }
    return {
        "prompt_id": prompt.prompt_id,
        "messages": [_to_turn(message) for message in prompt.messages + prompt.given],
        "category": prompt.category,
        "source": prompt.source,
        "licence": prompt.licence,
        **{key: value for key, value in optional.items() if value is not None},
    }


def _to_turn(message: Message) -> dict[str, Any]:
    calls = [
        {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in message.tool_calls
    ]
    optional = {
        "reasoning_content": message.reasoning,
        "tool_calls": calls,
        "name": message.name,
        "tool_call_id": message.tool_call_id,
    }
    return {
        "role": message.role,
        "content": message.content,
        **{key: value for key, value in optional.items() if value},
    }

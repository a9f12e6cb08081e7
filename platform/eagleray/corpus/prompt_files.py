"""Prompt files in and out: whatever people have, as a stream of prompts and rejects.

Reading is strict row by row and patient file by file: a row that cannot be a prompt becomes a reject
that names its place, and prompts plus rejects always equal the rows that were read.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from eagleray.corpus.inputs.base import BadRow, Row, RowError
from eagleray.corpus.inputs.catalog import container_of, form_of
from eagleray.corpus.inputs.opening import container_suffix, expand, open_rows
from eagleray.corpus.prompt import ASSISTANT, TOOL, Message, Prompt, Reject
from eagleray.errors import DataError
from eagleray.files import write_text_atomically


def read_prompts(path: str | Path, category: str, licence: str) -> Iterator[Prompt | Reject]:
    """Stream the prompts of all files that a path or glob names, in the order of their names.

    Args:
        category: Family of rows that do not name their own.
        licence: Licence of rows that do not name their own.

    Raises:
        DataError: A file is missing or damaged, or not one row of all files is a prompt.
    """
    found, first_reject = False, None
    for file in expand(str(path)):
        for number, row in _read_rows(file):
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


def write_prompts(path: Path, prompts: Iterable[Prompt]) -> None:
    """Write prompts so that a kill at any instant leaves the old file or the new one, never half of one."""
    text = "".join(json.dumps(_to_row(prompt), ensure_ascii=False) + "\n" for prompt in prompts)
    write_text_atomically(path, text)


def write_rejects(path: Path, rejects: Iterable[Reject]) -> None:
    """Write the reject table: one JSON object a line, with `origin` and `reason`."""
    rows = ({"origin": reject.origin, "reason": reject.reason} for reject in rejects)
    write_text_atomically(path, "".join(json.dumps(row) + "\n" for row in rows))


def _read_rows(file: str) -> Iterator[tuple[int, Row | BadRow]]:
    container = container_of(container_suffix(file), file)
    with open_rows(file, seekable=container.seekable) as stream:
        try:
            yield from container.rows(stream)
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

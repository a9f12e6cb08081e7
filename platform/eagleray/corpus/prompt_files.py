"""Prompt files: JSON Lines in and out.

Reading is strict row by row and patient file by file: a row that cannot be a prompt becomes a
reject that names its line, and good rows plus rejects always equal the rows of the file.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from eagleray.corpus.files import write_text_atomically
from eagleray.corpus.prompt import Message, Prompt, Reject
from eagleray.errors import DataError

MADE_BY_THE_TARGET = "assistant"


def read_prompts(path: Path, category: str, licence: str) -> tuple[list[Prompt], list[Reject]]:
    """Read a file of prompts. Blank lines are not rows; a repeated prompt is a reject.

    Args:
        category: Family of rows that do not name their own.
        licence: Licence of rows that do not name their own.

    Raises:
        DataError: The file is missing or unreadable, or not one of its rows is a prompt.
    """
    prompts: list[Prompt] = []
    rejects: list[Reject] = []
    first_line_of: dict[str, int] = {}
    for number, line in enumerate(_read_bytes(path).removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if not line.strip():
            continue
        origin = f"{path}:{number}"
        parsed = _parse_row(line, origin, category, licence)
        if isinstance(parsed, Prompt):
            first = first_line_of.setdefault(parsed.content_key, number)
            if first == number:
                prompts.append(parsed)
                continue
            parsed = f"same prompt as line {first}"
        rejects.append(Reject(origin=origin, reason=parsed))
    if not prompts:
        first_reason = f"; first reason: {rejects[0].origin}: {rejects[0].reason}" if rejects else ""
        raise DataError(
            f"Prompts file {path} has {len(rejects)} rows and none is a prompt{first_reason}. "
            'Each line must be an object like {"messages": [{"role": "user", "content": "..."}]} '
            'or {"prompt": "..."}.'
        )
    return prompts, rejects


def write_prompts(path: Path, prompts: Iterable[Prompt]) -> None:
    """Write prompts so that a kill at any instant leaves the old file or the new one, never half of one."""
    text = "".join(json.dumps(_to_row(prompt), ensure_ascii=False) + "\n" for prompt in prompts)
    write_text_atomically(path, text)


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(
            f"Prompts file {path} cannot be read ({error.strerror}; looked in {Path.cwd()}). "
            "Set the `path` of this prompts source to a JSONL file."
        ) from None


def _parse_row(line: bytes, origin: str, category: str, licence: str) -> Prompt | str:
    """Return the prompt of a line, or the reason why it holds none."""
    try:
        row = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        return f"not UTF-8 (byte {error.start})"
    except (ValueError, RecursionError) as error:
        return f"not JSON: {error}"
    if not isinstance(row, dict):
        return f"a JSON {type(row).__name__}, expected an object"
    messages = _messages_of(row)
    if isinstance(messages, str):
        return messages
    labels = {"category": category, "source": origin, "licence": licence}
    for name in labels:
        if name in row:
            if not isinstance(row[name], str):
                return f"`{name}` is {row[name]!r}, expected text"
            labels[name] = row[name]
    if not _is_unicode(
        [*labels.values(), *(text for turn in messages for text in (turn.role, turn.content))]
    ):
        return "holds a lone surrogate, which no file or tokenizer can store"
    return Prompt(messages=messages, **labels)


def _messages_of(row: dict[str, Any]) -> tuple[Message, ...] | str:
    if ("messages" in row) == ("prompt" in row):
        return f"needs exactly one of `messages` and `prompt`; its keys are {sorted(row)}"
    raw = row["messages"] if "messages" in row else [{"role": "user", "content": row["prompt"]}]
    if not isinstance(raw, list):
        return f"`messages` is {type(raw).__name__}, expected a list"
    messages: list[Message] = []
    for index, turn in enumerate(raw):
        message = _message_of(turn)
        if isinstance(message, str):
            return f"messages[{index}] {message}"
        messages.append(message)
    # A final assistant turn is somebody's answer; the target writes its own.
    while messages and messages[-1].role == MADE_BY_THE_TARGET:
        messages.pop()
    if not messages or not messages[-1].content.strip():
        return "no text to answer: the last turn before the answer is empty or missing"
    if all(message.role == "system" for message in messages):
        return "only system turns: nothing asks for an answer"
    return tuple(messages)


def _message_of(turn: Any) -> Message | str:
    if not isinstance(turn, dict):
        return f"is {type(turn).__name__}, expected an object with `role` and `content`"
    role, content = turn.get("role"), turn.get("content")
    if not isinstance(role, str) or not role:
        return f"has the role {role!r}, expected text such as 'user'"
    if turn.get("tool_calls"):
        return "has tool_calls, which a prompt cannot carry: put what was called into the text"
    if content is not None and not isinstance(content, str):
        return f"has content of type {type(content).__name__}, expected text or null"
    return Message(role, content or "")


def _is_unicode(texts: Iterable[str]) -> bool:
    try:
        for text in texts:
            text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _to_row(prompt: Prompt) -> dict[str, Any]:
    return {
        "prompt_id": prompt.prompt_id,
        "messages": [{"role": turn.role, "content": turn.content} for turn in prompt.messages],
        "category": prompt.category,
        "source": prompt.source,
        "licence": prompt.licence,
    }

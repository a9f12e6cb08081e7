"""Streamed answers: the chunks that a server sent one by one, joined into the response they spell.

A log holds them as a list, or as the text that went over the wire: one JSON object a line, with or
without the `data:` of server-sent events.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from eagleray.corpus.inputs.base import RowError
from eagleray.corpus.inputs.turns import from_json

END_OF_STREAM = "[DONE]"
_EVENT_FIELDS = (":", "event:", "id:", "retry:")


class _Piece(BaseModel):
    """The fields that are read of what a server sends; others are let pass."""

    model_config = ConfigDict(strict=True, frozen=True)


class _Function(_Piece):
    name: str | None = None
    arguments: str | None = None


class _Call(_Piece):
    index: int | None = None
    id: str | None = None
    function: _Function = _Function()


class _Delta(_Piece):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_Call] | None = None
    function_call: _Function | None = None


class _Choice(_Piece):
    index: int = 0
    delta: _Delta
    finish_reason: str | None = None


class _Chunk(_Piece):
    id: str | None = None
    choices: list[_Choice] | None = None
    """None or empty in chunks that only count tokens or report an error."""


def split_stream(text: str) -> Any:
    """Parse a response that was logged as text: one JSON value, or the lines of a stream.

    Raises:
        RowError: It is neither.
    """
    lines = [line for line in map(str.strip, text.split("\n")) if not line.startswith(_EVENT_FIELDS)]
    chunks = [chunk for line in lines if (chunk := line.removeprefix("data:").strip())]
    is_stream = len(chunks) > 1 and all(chunk.startswith("{") for chunk in chunks[:-1])
    if not is_stream and not any(line.startswith("data:") for line in lines):
        return from_json(text, "response")
    return [from_json(chunk, "response") for chunk in chunks if chunk != END_OF_STREAM]


def join_chunks(chunks: Sequence[Any]) -> dict[str, Any]:
    """Return the response that `chat.completion.chunk` objects spell, as if it had not been streamed.

    Only the first choice is read. A stream without a finish reason broke off: it has no choices,
    because nobody knows how its answer would have ended.

    Raises:
        RowError: An entry is no chunk, or they belong to several responses.
    """
    read = [_read(index, chunk) for index, chunk in enumerate(chunks) if chunk != END_OF_STREAM]
    ids = {chunk.id for chunk in read} - {None}
    if len(ids) > 1:
        raise RowError(f"response: the chunks belong to {len(ids)} responses, expected one")
    choices = [choice for chunk in read for choice in chunk.choices or () if choice.index == 0]
    finish_reasons = [choice.finish_reason for choice in choices if choice.finish_reason]
    if not finish_reasons:
        return {"choices": []}
    message = _message([choice.delta for choice in choices])
    return {"choices": [{"message": message, "finish_reason": finish_reasons[-1]}]}


def _read(index: int, chunk: Any) -> _Chunk:
    try:
        return _Chunk.model_validate(chunk)
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(map(str, problem["loc"]))
        raise RowError(f"response[{index}] is no stream chunk: {place or 'it'}: {problem['msg']}") from None


def _message(deltas: Sequence[_Delta]) -> dict[str, Any]:
    calls: dict[int, list[_Call]] = {}
    for delta in deltas:
        for position, call in enumerate(delta.tool_calls or ()):
            calls.setdefault(position if call.index is None else call.index, []).append(call)
    legacy = [delta.function_call for delta in deltas if delta.function_call]
    return {
        "content": _joined(delta.content for delta in deltas),
        "reasoning_content": _joined(delta.reasoning_content or delta.reasoning for delta in deltas),
        "tool_calls": [_call(calls[index]) for index in sorted(calls)],
        "function_call": _function(legacy) if legacy else None,
    }


def _call(pieces: Sequence[_Call]) -> dict[str, Any]:
    call_id = next((piece.id for piece in pieces if piece.id), None)
    return {"id": call_id, "function": _function([piece.function for piece in pieces])}


def _function(pieces: Sequence[_Function]) -> dict[str, Any]:
    return {
        "name": _joined(piece.name for piece in pieces) or None,
        "arguments": _joined(piece.arguments for piece in pieces) or None,
    }


def _joined(texts: Iterable[str | None]) -> str:
    return "".join(text for text in texts if text)

"""Rows that a server or gateway logged: an OpenAI chat request, and its response if there was one.

Request and response lie side by side, or one level deeper under `body` as in the files of batch jobs;
the fields of either may lie in the row itself. The response may be the chunks of a stream. One that
failed, was filtered or broke off is no answer; its request is still a prompt that somebody asked.

Text completions are refused: their prompt was rendered by somebody else's template, so which turns
were asked is unknown, and a chat template around it would ask for something else.
"""

from collections.abc import Mapping
from typing import Any

from eagleray.corpus.inputs.base import Conversation, Row, RowError
from eagleray.corpus.inputs.stream_chunks import join_chunks, split_stream
from eagleray.corpus.inputs.turns import from_json, read_tools, read_turn, read_turns, with_system
from eagleray.corpus.prompt import FinishReason, Message

FINISHED = ("stop", "tool_calls", "function_call", "length", None)
"""Finish reasons of an answer that the target gave; `content_filter` is not among them."""

_REQUEST_KEYS = ("request", "body")
_RESPONSE_KEYS = ("response", "chunks")
_RESPONSE_OBJECTS = ("chat.completion", "chat.completion.chunk", "text_completion")
_COMPLETION_REQUEST_KEYS = {"model", "prompt", "max_tokens"}


class ServingLogs:
    """A request and a response."""

    keys = "`request`"

    def claims(self, row: Row) -> bool:
        if _first(row, _REQUEST_KEYS) is not None or _is_response(row) or _is_response(row.get("response")):
            return True
        return isinstance(row.get("prompt"), str) and row.keys() >= _COMPLETION_REQUEST_KEYS

    def read(self, row: Row) -> Conversation:
        request = _request(row)
        response = _first(row, _RESPONSE_KEYS)
        answer, finish_reason = _answer(row if response is None and _is_response(row) else response)
        asked = with_system(request.get("system"), read_turns(request["messages"], "messages"))
        return Conversation(
            messages=asked + answer, tools=read_tools(request.get("tools")), finish_reason=finish_reason
        )


def _request(row: Row) -> Row:
    """The logged chat request.

    Raises:
        RowError: There is none.
    """
    logged = _first(row, _REQUEST_KEYS)
    request = row if logged is None else _unwrap(logged, "request")
    if not isinstance(request, Mapping):
        raise RowError("`request` is a list, expected an object")
    if request.get("messages") is not None:
        return request
    if request.get("prompt") is not None:
        raise RowError(
            "is a text completion: its `prompt` is already rendered, so which turns were asked is unknown. "
            "Log chat requests (/v1/chat/completions), or give the text the user wrote as `prompt` alone"
        )
    if logged is None:
        raise RowError(f"is a response without its request (its keys are {sorted(row)}): log both in one row")
    raise RowError(
        f"is a request without `messages` (its keys are {sorted(request)}): only chat requests "
        "say which turns were asked"
    )


def _answer(response: Any) -> tuple[tuple[Message, ...], FinishReason]:
    """The first choice of a response; a log of several choices holds them as samples of one prompt."""
    if response is None:
        return (), "stop"
    whole = _unwrap(response, "response")
    choices = (join_chunks(whole) if isinstance(whole, list) else whole).get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict) or choice.get("finish_reason") not in FINISHED:
        return (), "stop"
    message = choice.get("message")
    if message is None:
        return (), "stop"
    try:
        turn = read_turn({"role": "assistant", **message} if isinstance(message, dict) else message)
    except RowError as error:
        raise RowError(f"response: the message {error}") from None
    return (turn,), "length" if choice.get("finish_reason") == "length" else "stop"


def _is_response(value: Any) -> bool:
    """True for what a server sent back: whole, in chunks, or under `body`."""
    if isinstance(value, list):
        value = value[0] if value else None
    if not isinstance(value, Mapping):
        return False
    choices = value.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    is_choice = isinstance(choice, Mapping) and not choice.keys().isdisjoint(("message", "delta"))
    return is_choice or value.get("object") in _RESPONSE_OBJECTS or "body" in value


def _first(row: Row, keys: tuple[str, ...]) -> Any:
    return next((row[key] for key in keys if row.get(key) is not None), None)


def _unwrap(value: Any, key: str) -> Any:
    """Return the body of a logged request or response, which may be JSON text and lie under `body`."""
    for _ in range(3):
        if isinstance(value, str):
            value = split_stream(value) if key == "response" else from_json(value, key)
        if not isinstance(value, dict) or value.get("body") is None:
            break
        value = value["body"]
    if not isinstance(value, dict | list):
        raise RowError(f"`{key}` is {type(value).__name__}, expected an object")
    return value

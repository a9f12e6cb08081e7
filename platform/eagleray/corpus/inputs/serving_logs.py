"""Rows that a server or gateway logged: an OpenAI chat request, and its response if there was one.

Also the files of batch jobs, where request and response lie one level deeper under `body`. A failed or
filtered response is no answer; its request is still a prompt that somebody really asked.
"""

from typing import Any

from eagleray.corpus.inputs.base import Conversation, Row, RowError
from eagleray.corpus.inputs.turns import from_json, read_tools, read_turn, read_turns
from eagleray.corpus.prompt import FinishReason, Message

FINISHED = ("stop", "tool_calls", "function_call", "length", None)
"""Finish reasons of an answer that the target gave; `content_filter` is not among them."""


class ServingLogs:
    """A request and a response."""

    keys = "`request`"

    def claims(self, row: Row) -> bool:
        return row.get("request") is not None or row.get("body") is not None

    def read(self, row: Row) -> Conversation:
        request = _unwrap(row["request"] if row.get("request") is not None else row["body"], "request")
        if request.get("messages") is None:
            raise RowError(
                f"is a request without `messages` (its keys are {sorted(request)}): only chat requests "
                "say which turns were asked"
            )
        answer, finish_reason = _answer(row.get("response"))
        return Conversation(
            messages=read_turns(request["messages"], "messages") + answer,
            tools=read_tools(request.get("tools")),
            finish_reason=finish_reason,
        )


def _unwrap(value: Any, key: str) -> dict[str, Any]:
    """Return the body of a logged request or response, which may be JSON text and lie under `body`."""
    for _ in range(3):
        value = from_json(value, key) if isinstance(value, str) else value
        if not isinstance(value, dict):
            raise RowError(f"`{key}` is {type(value).__name__}, expected a whole object (no stream chunks)")
        if value.get("body") is None:
            break
        value = value["body"]
    return value


def _answer(response: Any) -> tuple[tuple[Message, ...], FinishReason]:
    """The first choice of a response; a log of several choices holds them as samples of one prompt."""
    if response is None:
        return (), "stop"
    choices = _unwrap(response, "response").get("choices")
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

"""One chat turn of a row, in the fields of OpenAI's chat API or of ShareGPT.

A turn that holds what text cannot carry (an image, an unknown field type) is an error with a reason,
because a turn shown in part teaches a conversation that never was.
"""

import json
from typing import Any

from eagleray.corpus.inputs.base import RowError
from eagleray.corpus.prompt import ASSISTANT, TOOL, Message, ToolCall

SHAREGPT_ROLES = {
    "human": "user",
    "gpt": ASSISTANT,
    "chatgpt": ASSISTANT,
    "bing": ASSISTANT,
    "bard": ASSISTANT,
    "model": ASSISTANT,
    "function_response": TOOL,
    "observation": TOOL,
}
REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")


def read_turns(turns: Any, key: str) -> tuple[Message, ...]:
    """Read a list of turns.

    Raises:
        RowError: Names the turn that cannot be read, and why.
    """
    turns = from_json(turns, key) if isinstance(turns, str) else turns
    if not isinstance(turns, list):
        raise RowError(f"`{key}` is {type(turns).__name__}, expected a list")
    messages = []
    for index, turn in enumerate(turns):
        try:
            messages.append(read_turn(turn))
        except RowError as error:
            raise RowError(f"{key}[{index}] {error}") from None
    return tuple(messages)


def read_turn(turn: Any) -> Message:
    """Read one turn.

    Raises:
        RowError: The reason alone.
    """
    if not isinstance(turn, dict):
        raise RowError(f"is {type(turn).__name__}, expected an object with `role` and `content`")
    if "from" in turn and "role" not in turn:
        return _sharegpt_turn(turn)
    role = turn.get("role")
    if not isinstance(role, str) or not role:
        raise RowError(f"has the role {role!r}, expected text such as 'user'")
    answers = role == ASSISTANT
    return Message(
        role=TOOL if role == "function" else role,
        content=_text(turn.get("content")),
        reasoning=_reasoning(turn) if answers else "",
        tool_calls=_tool_calls(turn) if answers else (),
        name=_string(turn, "name"),
        tool_call_id=_string(turn, "tool_call_id"),
    )


def read_tools(tools: Any) -> str:
    """Return the tools on offer as JSON text; empty for none.

    Raises:
        RowError: They are not a list of objects.
    """
    tools = from_json(tools, "tools") if isinstance(tools, str) and tools else tools
    if not tools:
        return ""
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise RowError("`tools` is not a list of objects")
    return json.dumps(tools, ensure_ascii=False)


def with_system(system: Any, messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Put a system text that a row keeps beside its turns in front of them.

    Raises:
        RowError: It is not text, or the turns begin with another one.
    """
    if not isinstance(system, str | list | None):
        raise RowError(f"`system` is {type(system).__name__}, expected text")
    text = _text(system)
    if not text:
        return messages
    if messages and messages[0].role == "system":
        if messages[0].content != text:
            raise RowError("has a `system` text and a system turn that differ")
        return messages
    return (Message("system", text), *messages)


def from_json(text: str, key: str) -> Any:
    """Parse a field that holds JSON as text.

    Raises:
        RowError: It is not JSON.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise RowError(f"`{key}` is text that is not JSON") from None


def _sharegpt_turn(turn: dict[str, Any]) -> Message:
    speaker = turn["from"]
    if not isinstance(speaker, str) or not speaker:
        raise RowError(f"has the speaker {speaker!r}, expected text such as 'human'")
    text = _text(turn.get("value"))
    if speaker == "function_call":
        calls = from_json(text, "value")
        calls = calls if isinstance(calls, list) else [calls]
        return Message(ASSISTANT, "", tool_calls=tuple(_tool_call(call) for call in calls))
    return Message(SHAREGPT_ROLES.get(speaker, speaker), text)


def _text(content: Any) -> str:
    """Join text parts as vLLM does for templates that take text: by line breaks."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RowError(
            f"has content of type {type(content).__name__}, expected text, null or a list of parts"
        )
    texts = []
    for part in content:
        text = part.get("text") if isinstance(part, dict) else part
        if not isinstance(text, str):
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise RowError(f"has a content part of type {kind!r}, expected only text")
        texts.append(text)
    return "\n".join(texts)


def _reasoning(turn: dict[str, Any]) -> str:
    return next((text for key in REASONING_KEYS if (text := _string(turn, key))), "")


def _string(turn: dict[str, Any], key: str) -> str:
    value = turn.get(key)
    if value is not None and not isinstance(value, str):
        raise RowError(f"has `{key}` of type {type(value).__name__}, expected text")
    return value or ""


def _tool_calls(turn: dict[str, Any]) -> tuple[ToolCall, ...]:
    calls = turn.get("tool_calls") or ([turn["function_call"]] if turn.get("function_call") else [])
    if not isinstance(calls, list):
        raise RowError(f"has `tool_calls` of type {type(calls).__name__}, expected a list")
    return tuple(_tool_call(call) for call in calls)


def _tool_call(call: Any) -> ToolCall:
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RowError("has a tool call without a function name")
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = json.dumps({} if arguments is None else arguments, ensure_ascii=False)
    return ToolCall(name=function["name"], arguments=arguments, call_id=_string(call, "id"))

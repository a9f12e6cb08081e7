"""Row forms: how each layout that people have becomes turns, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from eagleray.corpus.inputs.base import Conversation, RowError
from eagleray.corpus.inputs.catalog import form_of
from eagleray.corpus.prompt import Message, Prompt, Reject, ToolCall
from eagleray.corpus.prompt_files import read_prompts

USER, ANSWER = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ok."}
TURNS = (Message("user", "Hi"), Message("assistant", "Ok."))
REQUEST = {"model": "m", "messages": [USER], "temperature": 0.7}


def _response(message: Any = ANSWER, finish_reason: str | None = "stop") -> dict[str, Any]:
    return {"id": "r", "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}]}


def _read(row: dict[str, Any]) -> Conversation:
    return form_of(row).read(row)


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [USER, ANSWER]},
        {"conversations": [USER, ANSWER]},
        {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ok."}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}, ANSWER]},
        {"messages": json.dumps([USER, ANSWER])},
        {"messages": [USER, ANSWER], "prompt": "Hi", "chosen": [], "system": None, "tools": None},
        {"prompt": "Hi", "completion": "Ok."},
        {"prompt": [USER], "completion": [ANSWER]},
        {"request": REQUEST, "response": _response()},
        {"request": json.dumps(REQUEST), "response": json.dumps(_response())},
        {"request": {"body": REQUEST}, "response": {"status_code": 200, "body": _response()}},
        {"custom_id": "1", "body": REQUEST, "response": {"body": _response()}},
    ],
)
def test_every_layout_gives_the_same_turns(row: dict[str, Any]) -> None:
    assert _read(row).messages == TURNS


def test_text_parts_are_joined_by_line_breaks() -> None:
    parts = ["one", {"type": "text", "text": "two"}]
    assert _read({"messages": [{"role": "user", "content": parts}]}).messages[0].content == "one\ntwo"


@pytest.mark.parametrize("arguments", ['{"city": "Oslo"}', {"city": "Oslo"}])
def test_tool_turns_calls_and_tools_are_carried_with_arguments_as_text(arguments: Any) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
    tools = [{"type": "function", "function": {"name": "get_weather"}}]
    turns = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "4", "tool_call_id": "c1", "name": "get_weather"},
    ]
    conversation = _read({"messages": turns, "tools": tools})
    assert conversation.messages[1:] == (
        Message("assistant", "", tool_calls=(ToolCall("get_weather", '{"city": "Oslo"}', "c1"),)),
        Message("tool", "4", name="get_weather", tool_call_id="c1"),
    )
    assert json.loads(conversation.tools) == tools
    assert _read({"messages": turns, "tools": json.dumps(tools)}).tools == conversation.tools


def test_older_spellings_of_calls_are_understood() -> None:
    legacy = {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}
    result = {"role": "function", "name": "f", "content": "1"}
    assert _read({"messages": [USER, legacy, result]}).messages[1:] == (
        Message("assistant", "", tool_calls=(ToolCall("f", "{}"),)),
        Message("tool", "1", name="f"),
    )
    sharegpt = [
        {"from": "human", "value": "Hi"},
        {"from": "function_call", "value": '{"name": "f", "arguments": {"a": 1}}'},
        {"from": "observation", "value": "1"},
    ]
    assert _read({"conversations": sharegpt}).messages[1:] == (
        Message("assistant", "", tool_calls=(ToolCall("f", '{"a": 1}'),)),
        Message("tool", "1"),
    )


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking"])
def test_thoughts_in_a_field_of_their_own_are_kept(key: str) -> None:
    assert _read({"messages": [USER, {**ANSWER, key: "Hm."}]}).messages[1].reasoning == "Hm."


def test_a_system_column_comes_first_and_may_repeat_the_system_turn() -> None:
    system = Message("system", "Be terse.")
    assert _read({"messages": [USER], "system": "Be terse."}).messages == (system, TURNS[0])
    assert _read({"prompt": "Hi", "system": "Be terse."}).messages == (system, TURNS[0])
    twice = [{"role": "system", "content": "Be terse."}, USER]
    assert _read({"messages": twice, "system": "Be terse."}).messages == (system, TURNS[0])
    with pytest.raises(RowError, match="differ"):
        _read({"messages": twice, "system": "Be long."})


@pytest.mark.parametrize(
    ("response", "answers", "finish_reason"),
    [
        (None, 0, "stop"),
        ({"error": {"message": "overloaded"}}, 0, "stop"),
        ({"status_code": 500, "body": {"error": "x"}}, 0, "stop"),
        (_response(finish_reason="content_filter"), 0, "stop"),
        (_response(finish_reason="length"), 1, "length"),
        (_response({"content": "Ok."}), 1, "stop"),
    ],
)
def test_a_failed_or_filtered_response_leaves_the_prompt_without_an_answer(
    response: Any, answers: int, finish_reason: str
) -> None:
    conversation = _read({"request": REQUEST, "response": response})
    assert len(conversation.messages) == 1 + answers
    assert conversation.finish_reason == finish_reason


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"text": "x"}, r"none of .* its keys are \['text'\]"),
        ({"messages": {"role": "user"}}, "`messages` is dict, expected a list"),
        ({"messages": "oops"}, "`messages` is text that is not JSON"),
        ({"messages": ["Hi"]}, r"messages\[0\] is str, expected an object"),
        ({"messages": [{"role": "user", "content": 7}]}, "content of type int"),
        ({"messages": [{"role": "user", "content": {"text": "x"}}]}, "content of type dict"),
        (
            {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]},
            "part of type 'input_audio'",
        ),
        ({"messages": [{"content": "x"}]}, "the role None"),
        ({"conversations": [{"from": None, "value": "x"}]}, "the speaker None"),
        ({"messages": [{**ANSWER, "tool_calls": {"a": 1}}]}, "`tool_calls` of type dict"),
        ({"messages": [{**ANSWER, "tool_calls": [{"id": "x"}]}]}, "without a function name"),
        ({"messages": [{**ANSWER, "reasoning": 3}]}, "`reasoning` of type int"),
        ({"messages": [USER], "tools": "x"}, "`tools` is text that is not JSON"),
        ({"messages": [USER], "tools": {"a": 1}}, "not a list of objects"),
        ({"messages": [USER], "system": 3}, "`system` is int"),
        ({"prompt": 5}, "`prompt` is int"),
        ({"prompt": "x", "completion": 5}, "`completion` is int"),
        ({"request": {"prompt": "raw text"}}, "a request without `messages`"),
        ({"request": 3}, "`request` is int"),
        ({"request": REQUEST, "response": [{"choices": []}]}, "no stream chunks"),
        ({"request": REQUEST, "response": _response("text")}, "response: the message is str"),
    ],
)
def test_what_is_not_a_conversation_has_a_reason(row: dict[str, Any], reason: str) -> None:
    with pytest.raises(RowError, match=reason):
        _read(row)


def test_one_file_may_mix_all_layouts_and_loses_no_row(tmp_path: Path) -> None:
    rows = [
        {"prompt": "a"},
        {"messages": [USER]},
        {"conversations": [{"from": "human", "value": "b"}]},
        {"request": REQUEST},
        {"prompt": None, "messages": None},
        {"prompt": "lone \ud83d surrogate"},
        {"messages": [USER, {"role": "assistant", "tool_calls": [{"name": "f", "arguments": "\ud83d"}]}]},
        {"prompt": "c", "licence": None, "category": "mine"},
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    items = list(read_prompts(path, "c", "l"))
    assert len(items) == len(rows)
    assert [isinstance(item, Prompt) for item in items] == [True] * 4 + [False] * 3 + [True]
    assert [item.category for item in items if isinstance(item, Prompt)][-1] == "mine"
    reasons = [item.reason for item in items if isinstance(item, Reject)]
    assert ["surrogate" in reason for reason in reasons] == [False, True, True]

"""Row forms: how each layout that people have becomes turns, and what is refused."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from eagleray.corpus.inputs.base import Conversation, RowError
from eagleray.corpus.inputs.catalog import form_of
from eagleray.corpus.prompt import Message, Prompt, Reject, ToolCall
from eagleray.corpus.prompt_files import read_prompts

USER, ANSWER = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ok."}
TURNS = (Message("user", "Hi"), Message("assistant", "Ok."))
REQUEST = {"model": "m", "messages": [USER], "temperature": 0.7}


def _response(message: Any = ANSWER, finish_reason: str | None = "stop") -> dict[str, Any]:
    return {"id": "r", "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}]}


def _chunk(delta: dict[str, Any], finish_reason: str | None = None, index: int = 0) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "finish_reason": finish_reason}
    return {"id": "r", "object": "chat.completion.chunk", "choices": [choice]}


CHUNKS = [
    _chunk({"role": "assistant", "content": ""}),
    _chunk({"content": "O"}),
    _chunk({"content": "another sample"}, index=1),
    _chunk({"content": "k."}),
    _chunk({}, "stop"),
    {"id": "r", "object": "chat.completion.chunk", "choices": [], "usage": {"completion_tokens": 3}},
]
EVENTS = ": keep-alive\n\n" + "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in CHUNKS) + "data: [DONE]\n"


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
        {"prompt": "Hi", "response": "Ok."},
        {"prompt": [USER], "completion": [ANSWER]},
        {"request": REQUEST, "response": _response()},
        {"request": json.dumps(REQUEST), "response": json.dumps(_response())},
        {"request": {"body": REQUEST}, "response": {"status_code": 200, "body": _response()}},
        {"custom_id": "1", "body": REQUEST, "response": {"body": _response()}},
        {**REQUEST, **_response()},
        {**REQUEST, "response": _response()},
        {"request": REQUEST, "response": CHUNKS},
        {"request": REQUEST, "chunks": CHUNKS},
        {"request": REQUEST, "response": {"status_code": 200, "body": CHUNKS}},
        {"request": REQUEST, "response": "\n".join(map(json.dumps, CHUNKS))},
        {"request": REQUEST, "response": EVENTS},
        {"request": {"body": json.dumps(REQUEST)}, "response": {"body": EVENTS}},
        {**REQUEST, "response": CHUNKS},
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
        (CHUNKS[:4], 0, "stop"),
        ([], 0, "stop"),
        ([*CHUNKS[:4], {"error": {"message": "overloaded"}}], 0, "stop"),
        ([*CHUNKS[:4], _chunk({}, "content_filter")], 0, "stop"),
        ([*CHUNKS[:4], _chunk({}, "length")], 1, "length"),
    ],
)
def test_a_failed_filtered_or_broken_response_leaves_the_prompt_without_an_answer(
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
        ({"request": {"model": "m"}}, "a request without `messages`"),
        ({"request": {"prompt": "raw text"}}, "a text completion: its `prompt` is already rendered"),
        ({"request": {"prompt": [1, 2]}, "response": {"choices": [{"text": "x"}]}}, "a text completion"),
        ({"model": "m", "prompt": "raw", "max_tokens": 9, "temperature": 0}, "a text completion"),
        ({"prompt": "raw", "object": "text_completion", "choices": [{"text": "x"}]}, "a text completion"),
        (_response(), "a response without its request"),
        (CHUNKS[0], "a response without its request"),
        ({"request": 3}, "`request` is int"),
        ({"request": []}, "`request` is a list"),
        ({"request": REQUEST, "response": "oops"}, "`response` is text that is not JSON"),
        ({"request": REQUEST, "response": "data: {}\ndata: {oops\n"}, "`response` is text that is not JSON"),
        ({"request": REQUEST, "response": [7]}, r"response\[0\] is no stream chunk: it: Input should be"),
        (
            {"request": REQUEST, "response": [_response()]},
            r"response\[0\] is no stream chunk: choices.0.delta: Field required",
        ),
        ({"request": REQUEST, "response": [*CHUNKS, {**CHUNKS[1], "id": "s"}]}, "belong to 2 responses"),
        (
            {"request": REQUEST, "response": [_chunk({"content": ["x"]})]},
            r"choices\.0\.delta\.content: Input should be a valid string",
        ),
        (
            {"request": REQUEST, "response": [_chunk({"tool_calls": ["x"]})]},
            r"delta\.tool_calls\.0: Input should be",
        ),
        ({"request": REQUEST, "response": _response("text")}, "response: the message is str"),
    ],
)
def test_what_is_not_a_conversation_has_a_reason(row: dict[str, Any], reason: str) -> None:
    with pytest.raises(RowError, match=reason):
        _read(row)


def test_streamed_thoughts_and_tool_calls_are_joined_piece_by_piece() -> None:
    def call(index: int, **function: str) -> dict[str, Any]:
        named = {"id": f"c{index}", "type": "function"} if "name" in function else {}
        return {"tool_calls": [{"index": index, **named, "function": function}]}

    deltas = [
        {"role": "assistant", "reasoning_content": "Which "},
        {"reasoning_content": "city?", "content": None},
        call(1, name="time", arguments=""),
        call(0, name="get_weather", arguments='{"city": '),
        call(1, arguments="{}"),
        call(0, arguments='"Oslo"}'),
    ]
    chunks = [*map(_chunk, deltas), _chunk({}, "tool_calls")]
    answer = _read({"request": REQUEST, "response": chunks}).messages[-1]
    assert answer == Message(
        "assistant",
        "",
        reasoning="Which city?",
        tool_calls=(ToolCall("get_weather", '{"city": "Oslo"}', "c0"), ToolCall("time", "{}", "c1")),
    )
    legacy = [
        _chunk({"function_call": {"name": "f", "arguments": "{"}}),
        _chunk({"function_call": {"arguments": "}"}}),
    ]
    answer = _read({"request": REQUEST, "response": [*legacy, _chunk({}, "function_call")]}).messages[-1]
    assert answer.tool_calls == (ToolCall("f", "{}"),)


@given(text=st.text(min_size=1), cuts=st.lists(st.integers(0, 40)), as_text=st.booleans())
def test_an_answer_is_the_same_however_it_was_cut_into_chunks(
    text: str, cuts: list[int], as_text: bool
) -> None:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[start:end] for start, end in itertools.pairwise(edges)]
    chunks = [*(_chunk({"content": piece}) for piece in pieces), _chunk({}, "stop")]
    events = "".join(f"data: {json.dumps(chunk, ensure_ascii=False)}\r\n\r\n" for chunk in chunks)
    answer = _read({"request": REQUEST, "response": events if as_text else chunks}).messages[-1]
    assert answer.content == text


FIELDS = ("request", "response", "messages", "role", "content", "choices", "delta", "index", "id", "body")
ANYTHING = st.recursive(
    st.none() | st.integers() | st.sampled_from(["user", "assistant", "stop", "x", "data: {}", "[DONE]"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
    max_leaves=12,
)


@given(row=st.dictionaries(st.sampled_from(FIELDS), ANYTHING, max_size=4))
@example(row={"request": REQUEST, "response": [{"id": [], "choices": 3}]})
@settings(max_examples=150)
def test_any_object_is_a_conversation_or_has_a_reason(row: dict[str, Any]) -> None:
    try:
        conversation = _read(row)
    except RowError:
        return
    assert all(isinstance(message, Message) for message in conversation.messages)


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "Hi", "choices": ["A", "B"], "answer": "A"},
        {"prompt": "Hi", "choices": [{"label": "A", "text": "x"}]},
        {"prompt": "Hi", "response": ["x", "y"]},
        {"prompt": "Hi", "max_tokens": 64},
    ],
)
def test_a_prompt_with_columns_that_only_sound_like_a_log_is_a_prompt(row: dict[str, Any]) -> None:
    assert _read(row).messages == TURNS[:1]


def test_one_file_may_mix_all_layouts_and_loses_no_row(tmp_path: Path) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    as_object = {**call, "function": {"name": "f", "arguments": {"a": 1}}}
    result = {"role": "tool", "content": [{"type": "text", "text": "1"}], "tool_call_id": "c"}
    good = [
        {"prompt": "a"},
        {"messages": [USER]},
        {"conversations": [{"from": "human", "value": "b"}]},
        {"request": REQUEST, "response": _response()},
        {"request": REQUEST, "response": CHUNKS},
        {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [call]}, result]},
        {
            "messages": [USER, {"role": "assistant", "tool_calls": [as_object]}, result],
            "tools": [{"name": "f"}],
        },
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "c"}, "d"]}, ANSWER]},
        {"prompt": "c", "licence": None, "category": "mine"},
    ]
    bad = [
        {"prompt": None, "messages": None},
        {"prompt": "lone \ud83d surrogate"},
        {"messages": [USER, {"role": "assistant", "tool_calls": [{"name": "f", "arguments": "\ud83d"}]}]},
        {"request": {"prompt": "rendered"}},
        CHUNKS[1],
    ]
    rows = [row for pair in itertools.zip_longest(good, bad) for row in pair if row is not None]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    items = list(read_prompts(path, "c", "l"))
    assert len(items) == len(rows)
    assert [isinstance(item, Prompt) for item in items] == [row in good for row in rows]
    prompts = [item for item in items if isinstance(item, Prompt)]
    assert [prompt.category for prompt in prompts] == ["c"] * 8 + ["mine"]
    calls = [call for prompt in prompts for turn in prompt.messages for call in turn.tool_calls]
    assert calls == [ToolCall("f", '{"a": 1}', "c")] * 2
    assert prompts[7].messages[0].content == "c\nd"
    reasons = [item.reason for item in items if isinstance(item, Reject)]
    assert ["surrogate" in reason for reason in reasons] == [False, True, True, False, False]

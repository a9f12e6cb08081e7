"""What a client asks for is honoured or refused by name."""

import json

import pytest

from eagleray.serving.refusals import RefusalError
from eagleray.serving.requests import ChatRequest, CompletionRequest, read_request

TURNS = [{"role": "user", "content": "Hi"}]


def chat(**fields):
    return read_request(ChatRequest, json.dumps({"messages": TURNS, **fields}).encode())


def refusal(schema, body) -> RefusalError:
    with pytest.raises(RefusalError) as caught:
        read_request(schema, body if isinstance(body, bytes) else json.dumps(body).encode())
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b"\xff\xfe",
        b'{"messages": NaN}',
        b'{"a": "\\ud800"}',
        b"[" * 10_000,
        b"9" * 9_000,
    ],
)
def test_a_body_that_is_not_json_is_refused(body):
    assert refusal(ChatRequest, body).code == "invalid_json"


@pytest.mark.parametrize("body", [[], "text", 7, None, True])
def test_a_body_that_is_no_object_is_refused(body):
    assert "expected an object" in refusal(ChatRequest, body).message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("response_format", {"type": "json_object"}),
        ("tools", [{"type": "function"}]),
        ("best_of", 2),
        ("ignore_eos", True),
        ("temprature", 1),
    ],
)
def test_what_would_change_the_answer_and_is_not_supported_is_refused_by_name(field, value):
    assert refusal(ChatRequest, {"messages": TURNS, field: value}).param == field


@pytest.mark.parametrize(
    "fields",
    [
        {"frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}, "logprobs": False},
        {"response_format": {"type": "text"}, "tools": [], "user": "me", "metadata": {"a": "b"}},
        {"logit_bias": None, "tools": None, "temperature": None, "stop": None, "max_tokens": None, "n": None},
    ],
)
def test_neutral_values_of_unsupported_fields_are_accepted(fields):
    assert chat(**fields).temperature == 1.0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", 1.5),
        ("max_tokens", "10"),
        ("temperature", -0.1),
        ("temperature", 3),
        ("temperature", "warm"),
        ("top_p", 0),
        ("n", 0),
        ("n", True),
        ("seed", 2**64),
        ("frequency_penalty", 2.5),
        ("logit_bias", {"five": 1}),
        ("logit_bias", {"5": 1e9}),
        ("logprobs", 3),
        ("top_logprobs", 21),
        ("stop", [""]),
        ("stop", [1]),
        ("stream", "yes"),
        ("messages", []),
        ("messages", "Hi"),
        ("stream_options", {"include_usage": True}),
    ],
)
def test_a_value_out_of_range_or_of_another_type_is_refused_with_what_was_seen(field, value):
    refused = refusal(ChatRequest, {"messages": TURNS, field: value})
    assert field in refused.message


def test_a_long_value_is_not_repeated_whole():
    refused = refusal(ChatRequest, {"messages": TURNS, "temperature": "x" * 10_000})
    assert len(refused.message) < 400


def test_content_in_parts_is_one_text_and_other_parts_are_refused():
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    assert chat(messages=[{"role": "user", "content": parts}]).messages[0].text == "Hello"
    image = [{"type": "image_url", "image_url": {"url": "http://localhost"}}]
    assert refusal(ChatRequest, {"messages": [{"role": "user", "content": image}]}).param == "messages"


def test_a_turn_that_the_server_gave_can_be_given_back():
    turn = {"role": "assistant", "content": "Hi.", "refusal": None, "tool_calls": None, "audio": None}
    assert chat(messages=[*TURNS, turn, *TURNS]).messages[1].text == "Hi."


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("Hi", ["Hi"]),
        ("", [""]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
    ],
)
def test_prompts_are_texts_or_ids_one_or_several(prompt, prompts):
    assert read_request(CompletionRequest, json.dumps({"prompt": prompt}).encode()).prompts == prompts


@pytest.mark.parametrize("prompt", [[], [[]], [1, "a"], [-1], [1.5], {}, 5, None, [["a"]]])
def test_other_prompts_are_refused(prompt):
    assert refusal(CompletionRequest, {"prompt": prompt}).param == "prompt"

"""Faults of answers that have been met in the field, on vLLM with prompt lookup against our plain engine.

The native engine has the same cases in tests/unit; docs/failures.md names them.
"""

import json
import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from eagleray.corpus.chat import ChatTemplate
from eagleray.corpus.prompt import Message
from eagleray.engines.base import GenerationRequest
from eagleray.engines.native.config import NativeEngineConfig
from eagleray.engines.native.engine import NativeEngine
from eagleray.engines.served import MODEL_NAME, PromptLookup
from eagleray.engines.vllm.config import VllmConfig
from eagleray.engines.vllm.process import VllmServer
from eagleray.errors import EngineError
from eagleray.speculation.config import LogitAdjustments
from eagleray.targets.decoder import TargetDecoder
from eagleray.targets.embedded import prepare_embedded
from eagleray.targets.loading import load_tokenizer

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]

WINDOW = 256
NEW_TOKENS = 32
QUESTION = "Repeat this four times: one two three."


@pytest.fixture(scope="module")
def chat() -> ChatTemplate:
    return ChatTemplate(load_tokenizer(prepare_embedded()))


@pytest.fixture(scope="module")
def native(chat: ChatTemplate) -> NativeEngine:
    decoder = TargetDecoder.load(prepare_embedded(), torch.float32)
    return NativeEngine(decoder, NativeEngineConfig(context_window_tokens=WINDOW), show=chat.show)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    environment = Path(os.environ.get("VLLM_ENV", ".venv-vllm"))
    config = VllmConfig(environment=environment, threads=2, max_length=WINDOW)
    log = tmp_path_factory.mktemp("vllm") / "server.log"
    with VllmServer(config, prepare_embedded(), PromptLookup(depth=4), log) as server:
        yield server


@pytest.fixture(scope="module")
def prompt_ids(chat: ChatTemplate) -> tuple[int, ...]:
    return chat.encode(chat.ask([Message("user", QUESTION)]))


def plain(native: NativeEngine, prompt_ids: tuple[int, ...], **fields: Any) -> tuple[int, ...]:
    request = GenerationRequest(
        request_id="r", prompt_ids=prompt_ids, **{"max_new_tokens": NEW_TOKENS, **fields}
    )
    return native.generate([request]).generations[0].answer_ids


def body(prompt_ids: tuple[int, ...], **fields: Any) -> dict[str, Any]:
    asked = {"model": MODEL_NAME, "prompt": list(prompt_ids), "max_tokens": NEW_TOKENS, "temperature": 0.0}
    return {**asked, "skip_special_tokens": False, "return_token_ids": True, **fields}


def choice(server: VllmServer, prompt_ids: tuple[int, ...], **fields: Any) -> dict[str, Any]:
    (only,) = server.post("/v1/completions", body(prompt_ids, **fields))["choices"]
    return dict(only)


def unless_refused(server: VllmServer, prompt_ids: tuple[int, ...], **fields: Any) -> dict[str, Any] | None:
    try:
        return choice(server, prompt_ids, **fields)
    except EngineError as refusal:
        if "HTTP 400" not in str(refusal):
            raise
        return None


def deltas(server: VllmServer, prompt_ids: tuple[int, ...], **fields: Any) -> list[str]:
    request = urllib.request.Request(
        f"{server.url}/v1/completions",
        json.dumps(body(prompt_ids, stream=True, **fields)).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=300) as response:
        events = [line[6:] for line in response.read().decode().splitlines() if line.startswith("data: {")]
    return [choice["text"] for event in events for choice in json.loads(event)["choices"]]


def test_greedy_ids_are_those_of_plain_decoding(server, native, prompt_ids) -> None:
    assert server.complete(prompt_ids, NEW_TOKENS).answer_ids == plain(native, prompt_ids)


@pytest.mark.parametrize("place", [2, 3, 4])
def test_a_stop_token_ends_the_answer_within_a_draft(server, native, prompt_ids, place) -> None:
    whole = plain(native, prompt_ids)
    expected = whole[: whole.index(whole[place]) + 1]
    told = choice(server, prompt_ids, stop_token_ids=[whole[place]])
    assert (tuple(told["token_ids"]), told["finish_reason"]) == (expected, "stop")


@pytest.mark.parametrize("first", [1, 5, 9])
def test_a_stop_string_across_tokens_ends_the_text(server, native, chat, prompt_ids, first) -> None:
    whole = chat.show(plain(native, prompt_ids))
    stop = whole[first : first + 3]
    expected = whole[: whole.index(stop)]
    assert choice(server, prompt_ids, stop=[stop])["text"] == expected
    assert "".join(deltas(server, prompt_ids, stop=[stop])) == expected


def test_a_stream_splits_no_character(server, prompt_ids) -> None:
    parts = deltas(server, prompt_ids)
    assert "".join(parts) == choice(server, prompt_ids)["text"]
    assert not any("\ufffd" in part for part in parts[:-1])


@pytest.mark.parametrize(
    ("fields", "adjustments"),
    [
        ({"frequency_penalty": 1.5}, {"frequency_penalty": 1.5}),
        ({"presence_penalty": 1.5}, {"presence_penalty": 1.5}),
        ({"logit_bias": {"28": -100.0}}, {"logit_bias": {28: -100.0}}),
        ({"min_tokens": 24}, {"min_new_tokens": 24}),
    ],
    ids=["frequency", "presence", "bias", "least length"],
)
def test_what_shapes_an_answer_is_applied_as_in_plain_decoding_or_refused(
    server, native, prompt_ids, fields, adjustments
) -> None:
    expected = plain(native, prompt_ids, adjustments=LogitAdjustments(**adjustments))
    told = unless_refused(server, prompt_ids, **fields)
    assert told is None or tuple(told["token_ids"]) == expected


@pytest.mark.parametrize("length", [WINDOW - 6, WINDOW - 2, WINDOW - 1, WINDOW])
def test_the_window_bounds_prompt_and_answer(server, native, length) -> None:
    prompt_ids = tuple(20 + place % 7 for place in range(length))
    if length == WINDOW:
        with pytest.raises(EngineError, match="HTTP 400"):
            server.complete(prompt_ids, 1)
        return
    answer = server.complete(prompt_ids, WINDOW - length)
    assert answer.answer_ids == plain(native, prompt_ids, max_new_tokens=WINDOW)

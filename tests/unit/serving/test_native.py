"""The native engine behind the endpoint gives what it gives in-process: ids, ends and counts of cycles."""

import dataclasses
from pathlib import Path

import pytest
import torch
import transformers

from eagleray.drafters.catalog import build_drafter
from eagleray.drafters.prompt_lookup.config import PromptLookupConfig
from eagleray.engines.base import DraftSetting, GenerationRequest
from eagleray.engines.native.config import NativeEngineConfig
from eagleray.engines.native.engine import NativeEngine
from eagleray.serving.config import ServeConfig
from eagleray.serving.service import Lane, Service
from eagleray.speculation.acceptance import summarize
from eagleray.speculation.config import LogitAdjustments
from eagleray.targets.decoder import TargetDecoder
from tests.unit.serving.conftest import Client

WINDOW = 256
PROMPTS = [[7, 8, 9, 7, 8, 9, 7, number, 8, 9] for number in range(20, 26)]


@pytest.fixture(scope="module")
def engine(chat, tmp_path_factory) -> NativeEngine:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(chat.tokenizer),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=WINDOW,
        initializer_range=0.2,
        eos_token_id=2,
    )
    folder = Path(tmp_path_factory.mktemp("tiny"))
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    decoder = TargetDecoder.load(folder, torch.float32)
    return NativeEngine(decoder, NativeEngineConfig(max_batch_size=4), show=chat.show)


def test_the_endpoint_gives_the_ids_and_cycles_of_the_engine(chat, engine):
    source = build_drafter(PromptLookupConfig(), engine.decoder.heads)
    draft = DraftSetting(source=source, depth=4)
    config = ServeConfig(model="tiny", engine=engine.config)
    lane = Lane(name="one", stream=engine.open_stream(draft=draft), draft=None, facts={})
    service = Service(config, lambda _: lane, chat, WINDOW, {})
    # A target of random weights repeats nothing; a bias makes it say what prompt lookup can foresee.
    body = {
        "logit_bias": {"7": 9.0, "8": 9.0},
        "max_tokens": 24,
        "temperature": 0,
        "return_token_ids": True,
        "return_cycles": True,
    }
    responses = Client(service, lane.stream).send_all(
        [("POST", "/v1/completions", {"json": {**body, "prompt": prompt}}) for prompt in PROMPTS]
    )
    service.close()
    bias = LogitAdjustments(logit_bias={7: 9.0, 8: 9.0})
    requests = [
        GenerationRequest(
            request_id=str(place), prompt_ids=tuple(prompt), max_new_tokens=24, adjustments=bias
        )
        for place, prompt in enumerate(PROMPTS)
    ]
    expected = engine.generate(requests, draft=draft).generations
    for response, generation in zip(responses, expected, strict=True):
        choice = response.json()["choices"][0]
        assert tuple(choice["token_ids"]) == generation.answer_ids
        assert choice["finish_reason"] == generation.finish_reason
        assert choice["cycles"] == {
            field.name: [getattr(cycle, field.name) for cycle in generation.cycles]
            for field in dataclasses.fields(generation.cycles[0])
        }
        summary = summarize(generation.cycles)
        assert response.json()["speculation"]["acceptance_length"] == summary.acceptance_length
    assert any(cycle.accepted for generation in expected for cycle in generation.cycles)


def test_a_prompt_that_begins_like_an_earlier_one_says_how_much_was_copied(chat, engine):
    """Of 100 common tokens one block of 64; two answers of one prompt count it once."""
    lane = Lane(name="one", stream=engine.open_stream(), draft=None, facts={})
    service = Service(ServeConfig(model="tiny", engine=engine.config), lambda _: lane, chat, WINDOW, {})
    client = Client(service, lane.stream)
    common = [7 + place % 50 for place in range(100)]
    bodies = [{"prompt": [*common, 9], "max_tokens": 2}, {"prompt": [*common, 8], "max_tokens": 2, "n": 2}]
    usages = [client.post("/v1/completions", body).json()["usage"] for body in bodies]
    totals = client.send("GET", "/v1/speculation").json()
    service.close()
    assert [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages] == [0, 64]
    assert (totals["prompt_tokens"], totals["reused_prompt_tokens"]) == (202, 64)

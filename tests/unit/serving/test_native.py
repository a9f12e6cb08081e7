"""The native engine behind the endpoint gives what it gives in-process: ids, ends and counts of cycles."""

import asyncio
import dataclasses
from pathlib import Path

import aiohttp
import pytest
import torch
import transformers

from eagleray.corpus.chat import RenderedPrompt
from eagleray.corpus.prompt import user_prompt
from eagleray.drafters.catalog import build_drafter
from eagleray.drafters.prompt_lookup.config import PromptLookupConfig
from eagleray.engines.base import DraftSetting, GenerationRequest
from eagleray.engines.native.config import NativeEngineConfig
from eagleray.engines.native.engine import NativeEngine
from eagleray.evaluation.endpoint.client import EndpointClient
from eagleray.evaluation.endpoint.config import ArmConfig, EndpointConfig
from eagleray.evaluation.endpoint.load import measure_load, plan_loads
from eagleray.evaluation.endpoint.report import build_endpoint_report
from eagleray.serving.config import ServeConfig
from eagleray.serving.service import Lane, Service
from eagleray.speculation.acceptance import summarize
from eagleray.speculation.config import LogitAdjustments
from eagleray.targets.decoder import TargetDecoder
from tests.unit.serving.conftest import Client

WINDOW = 256
TOKENS = 30
RING = (40, 41, 42, 43, 44, 45, 46)
PROMPTS = [[7, 8, 9, 7, 8, 9, 7, number, 8, 9] for number in range(20, 26)]


def new_model(chat) -> transformers.LlamaForCausalLM:
    """A target of random weights."""
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
    return transformers.LlamaForCausalLM(config)


@pytest.fixture(scope="module")
def engine(chat, tmp_path_factory) -> NativeEngine:
    return open_engine(new_model(chat), chat, tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def counting(chat, tmp_path_factory) -> NativeEngine:
    """A target that counts in a ring of tokens: nothing but the last one decides on the next."""
    model = new_model(chat)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.lm_head.weight.zero_()
        for place, token in enumerate(RING):
            model.lm_head.weight[RING[(place + 1) % len(RING)]] = model.model.embed_tokens.weight[token]
    return open_engine(model, chat, tmp_path_factory.mktemp("counting"))


def open_engine(model, chat, folder: Path) -> NativeEngine:
    model.save_pretrained(folder)
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


def test_an_evaluation_through_the_endpoint_finds_the_tau_of_one_in_process(chat, counting, listen):
    engine = counting
    source = build_drafter(PromptLookupConfig(), engine.decoder.heads)
    draft = DraftSetting(source=source, depth=4)
    prompts = [
        RenderedPrompt(
            prompt=user_prompt(str(number), category="c", source="test", licence="CC0-1.0"),
            prompt_ids=(7, 8, *RING[number:], 9, RING[number]),
        )
        for number in range(6)
    ]
    services, addresses = [], {}
    for arm, setting in (("plain", None), ("lookup", draft)):
        lane = Lane(name=arm, stream=engine.open_stream(draft=setting), draft=None, facts={})
        config = ServeConfig(model="tiny", engine=engine.config)
        services.append(Service(config, lambda _, lane=lane: lane, chat, WINDOW, {}))
        addresses[arm] = ArmConfig(url=listen(Client(services[-1], lane.stream)))
    endpoint = EndpointConfig(
        plain=addresses["plain"],
        drafted={"lookup": addresses["lookup"]},
        concurrencies=(1, 3),
        max_new_tokens=TOKENS,
    )

    async def measure():
        async with aiohttp.ClientSession() as session:
            clients = {arm: EndpointClient(server, session, 60.0) for arm, server in addresses.items()}
            for client in clients.values():
                await client.meet()
            return {
                load.name: await measure_load(load, clients, prompts, endpoint, lambda _: None)
                for load in plan_loads(endpoint)
            }

    report = build_endpoint_report(asyncio.run(measure()), endpoint, {"server": {}})
    for service in services:
        service.close()
    requests = [
        GenerationRequest(request_id=str(place), prompt_ids=item.prompt_ids, max_new_tokens=TOKENS)
        for place, item in enumerate(prompts)
    ]
    generations = engine.generate(requests, draft=draft).generations
    tau = summarize(cycle for generation in generations for cycle in generation.cycles).acceptance_length
    assert tau > 1.2, "nothing was drafted, so nothing is compared"
    for entry in report["drafters"]["lookup"]["loads"].values():
        assert entry["acceptance_length"] == pytest.approx(tau)
        assert entry["greedy_exact_ratio"] == 1.0


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

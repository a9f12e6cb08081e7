"""An evaluation through HTTP finds what the engine behind it did, token by token."""

import asyncio

import aiohttp
import pytest

from eagleray.corpus.chat import RenderedPrompt
from eagleray.corpus.prompt import user_prompt
from eagleray.engines.base import EngineTimes
from eagleray.errors import EngineError
from eagleray.evaluation.endpoint.client import EndpointClient
from eagleray.evaluation.endpoint.config import ArmConfig, EndpointConfig, ReplayConfig
from eagleray.evaluation.endpoint.load import draw_answers, measure_load, plan_loads
from eagleray.evaluation.endpoint.report import (
    build_endpoint_report,
    plain_answers,
    sampling_checks,
    shared_regime,
)
from eagleray.speculation.acceptance import Cycle

PROMPTS = [
    RenderedPrompt(
        prompt=user_prompt(
            f"{number}", category=("code", "prose")[number % 2], source="t", licence="CC0-1.0"
        ),
        prompt_ids=(1, 7, number),
    )
    for number in range(12)
]
ANSWER = list(range(100, 120))


@pytest.fixture
def log(tmp_path) -> str:
    """Requests 20 ms and 10 ms apart."""
    path = tmp_path / "monday.jsonl"
    path.write_text("".join(f'{{"prompt": "Hi", "arrived_s": {time}}}\n' for time in (7.0, 7.02, 7.03)))
    return str(path)


def config_of(plain: str, drafted: str, log: str | None = None) -> EndpointConfig:
    return EndpointConfig(
        plain=ArmConfig(url=plain),
        drafted={"drafted": ArmConfig(url=f"{drafted}/v1")},
        concurrencies=(1, 3),
        arrivals_per_s=(500.0,),
        replays=(ReplayConfig(log=log, speed=10.0),) if log else (),
        max_new_tokens=12,
        block_prompts=4,
    )


async def measure(config: EndpointConfig):
    async with aiohttp.ClientSession() as session:
        arms = {"plain": config.plain, **config.drafted}
        clients = {arm: EndpointClient(server, session, 30.0) for arm, server in arms.items()}
        regime = shared_regime({arm: await client.meet() for arm, client in clients.items()})
        blocks = {
            load.name: await measure_load(load, clients, PROMPTS, config, lambda _: None)
            for load in plan_loads(config)
        }
        return build_endpoint_report(blocks, config, regime), blocks


@pytest.fixture
def measured(serve, listen, log):
    plain, drafted = serve(ANSWER), serve(ANSWER, block=3)
    return asyncio.run(measure(config_of(listen(plain), listen(drafted), log)))


def test_acceptance_and_answers_are_those_of_the_engine(measured):
    report, _ = measured
    for entry in report["drafters"]["drafted"]["loads"].values():
        # 12 tokens: the first from prefill, then cycles of 4, 4 and the 3 that the limit leaves.
        assert entry["acceptance_length"] == pytest.approx(11 / 3)
        assert entry["greedy_exact_ratio"] == 1.0
        assert entry["prompts"] == 12
    assert set(report["drafters"]["drafted"]["families"]) == {"code", "prose"}
    loads = report["drafters"]["drafted"]["loads"]
    assert list(loads) == ["closed-1", "closed-3", "open-500", "replay-monday-x10"]
    assert [load["concurrency"] for load in loads.values()] == [1, 3, None, None]
    assert report["workloads"]["code"]["answer_tokens_median"] == 12
    assert set(plain_answers(measured[1]["closed-1"]).values()) == {tuple(ANSWER[:12])}


def test_every_token_is_counted_and_timed_whatever_the_chunks(measured):
    _, blocks = measured
    answers = {
        arm: [answer for block in blocks["closed-1"] if block.arm == arm for answer in block.answers]
        for arm in ("plain", "drafted")
    }
    for answer in answers["plain"] + answers["drafted"]:
        assert answer.tokens == len(answer.answer_ids) == 12
        assert answer.decode_tokens == 12 - answer.first_chunk_tokens
        assert answer.chunk_s == tuple(sorted(answer.chunk_s))
    assert answers["drafted"][0].cycles[0] == Cycle(drafted=3, accepted=3, delivered=4)
    assert len(answers["drafted"][0].chunk_s) < len(answers["plain"][0].chunk_s)


def test_the_engine_s_own_account_of_its_time_comes_with_every_block(serve, listen, monkeypatch):
    plain, drafted = serve(ANSWER), serve(ANSWER, block=3)
    times = EngineTimes(prefill_s=1.0, draft_s=2.0, verify_s=3.0, host_s=4.0)
    monkeypatch.setattr(drafted.stream, "times", times, raising=False)
    config = config_of(listen(plain), listen(drafted)).model_copy(update={"concurrencies": (1,)})
    _, blocks = asyncio.run(measure(config))
    parts = {"prefill", "draft", "verify", "host"}
    assert all(set(block.engine_s) == parts for block in blocks["closed-1"])
    told = drafted.send("GET", "/v1/speculation").json()["engine_s"]
    assert told == {"prefill": 1.0, "draft": 2.0, "verify": 3.0, "host": 4.0}


def test_servers_take_turns_over_the_same_prompts(measured):
    _, blocks = measured
    order = [(block.number, block.arm) for block in blocks["closed-1"]]
    assert order == [(0, "plain"), (0, "drafted"), (1, "drafted"), (1, "plain"), (2, "plain"), (2, "drafted")]
    asked = {
        arm: [a.prompt_id for b in blocks["closed-3"] if b.arm == arm for a in b.answers]
        for arm in ("plain", "drafted")
    }
    replayed = [a.prompt_id for b in blocks["replay-monday-x10"] if b.arm == "plain" for a in b.answers]
    assert replayed == [item.prompt.prompt_id for item in PROMPTS]
    assert sorted(asked["plain"]) == sorted(asked["drafted"]) == sorted(p.prompt.prompt_id for p in PROMPTS)


def test_answers_are_drawn_under_seeds_that_no_two_servers_share(serve, listen):
    plain, drafted = serve(ANSWER), serve(ANSWER, block=3)
    config = config_of(listen(plain), listen(drafted)).model_copy(update={"sampled_answers": 5})

    async def draw():
        async with aiohttp.ClientSession() as session:
            arms = {"plain": config.plain, **config.drafted}
            clients = {arm: EndpointClient(server, session, 30.0) for arm, server in arms.items()}
            for client in clients.values():
                await client.meet()
            return await draw_answers(clients, PROMPTS[0], config)

    sampled = asyncio.run(draw())
    assert sampled["plain"] == sampled["drafted"] == [tuple(ANSWER[:6])] * 5
    requests = plain.stream.seen + drafted.stream.seen
    assert len({request.seed for request in requests}) == 10
    assert {request.sampling.temperature for request in requests} == {1.0}
    (check,) = sampling_checks(sampled, ["drafted"])
    assert (check.name, check.outcome) == ("sampling distribution", "passed")
    assert [one.outcome for one in sampling_checks({}, ["drafted"])] == ["not run"]


def test_a_server_that_does_not_answer_is_named():
    with pytest.raises(EngineError, match="make serve"):
        asyncio.run(measure(config_of("http://127.0.0.1:9", "http://127.0.0.1:9")))

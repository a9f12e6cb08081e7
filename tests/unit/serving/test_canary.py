"""A new drafter takes over, or is taken back by itself; no request notices."""

import asyncio

import httpx
import pytest

from eagleray.drafters.prompt_lookup.config import PromptLookupConfig
from eagleray.serving.canary import Canary
from eagleray.serving.config import CanaryConfig, DraftConfig
from eagleray.speculation.acceptance import Cycle

TEXT = "one two three four five six"
NEW = DraftConfig(drafter=PromptLookupConfig(), depth=3)
CANARY = {"share": 0.5, "min_cycles": 6, "min_compared": 2}


def canary(live_tau=2, candidate_tau=2, cycles=6, same=2, different=0):
    one = Canary(CanaryConfig.model_validate(CANARY))
    one.live.add([Cycle(drafted=5, accepted=live_tau - 1, delivered=live_tau)] * cycles)
    one.candidate.add([Cycle(drafted=5, accepted=candidate_tau - 1, delivered=candidate_tau)] * cycles)
    for _ in range(same):
        one.compare(True)
    for _ in range(different):
        one.compare(False)
    return one


@pytest.mark.parametrize(
    ("state", "word"),
    [
        (canary(), "promote"),
        (canary(candidate_tau=3), "promote"),
        (canary(candidate_tau=1), "roll_back"),
        (canary(different=1), "roll_back"),
        (canary(cycles=1, different=1), "roll_back"),
        (canary(cycles=5), "wait"),
        (canary(same=1), "wait"),
    ],
)
def test_a_trial_is_decided_by_acceptance_and_by_answers(state, word):
    assert state.decide().word == word


@pytest.mark.parametrize(("share", "expected"), [(0.25, 25), (0.5, 50), (0.1, 10)])
def test_the_new_drafter_gets_its_share_of_the_requests(share, expected):
    one = Canary(CanaryConfig(share=share))
    taken = [one.takes_next() for _ in range(100)]
    assert abs(sum(taken) - expected) <= 1
    assert not all(taken[:3])


def swapped(serve, stream, requests=12):
    """Serve, swap while requests come, and return the client and all answers."""
    client = serve(TEXT, block=1, others=[stream], canary=CANARY)

    async def run():
        transport = httpx.ASGITransport(client.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as session:
            await client.service.swap(NEW)
            answers = []
            for _ in range(requests):
                body = {"prompt": "Hi", "temperature": 0, "max_tokens": 40}
                answers.append((await session.post("/v1/completions", json=body)).json())
                await asyncio.sleep(0.02)
            while client.service._shadows:
                await asyncio.sleep(0.01)
            return (
                answers,
                (await session.get("/v1/regime")).json(),
                (await session.get("/v1/speculation")).json(),
            )

    return client, *asyncio.run(run())


def test_a_drafter_that_does_as_well_takes_over(serve, scripted):
    stream = scripted(TEXT, block=3)
    client, answers, regime, facts = swapped(serve, stream)
    assert {answer["choices"][0]["text"] for answer in answers} == {TEXT}
    assert regime["draft"] == 3
    assert facts["swaps"][0].startswith("promote")
    asked = len(client.stream.seen)
    client.complete()
    assert len(client.stream.seen) == asked


@pytest.mark.parametrize(
    ("answer", "block", "reason"), [(TEXT, 0, "acceptance length 1.000"), ("one two four", 3, "differ")]
)
def test_a_drafter_that_drafts_worse_or_lies_is_taken_back(serve, scripted, answer, block, reason):
    stream = scripted(answer, block=block)
    client, answers, regime, facts = swapped(serve, stream)
    assert regime["draft"] is None
    assert facts["swaps"][0].startswith("roll_back")
    assert reason in facts["swaps"][0]
    asked = len(stream.seen)
    assert client.complete().json()["choices"][0]["text"] == TEXT
    assert len(stream.seen) == asked
    assert len(answers) == 12

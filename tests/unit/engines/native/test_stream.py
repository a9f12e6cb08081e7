"""A stream gives every request the answer it would get alone, whatever comes, goes or waits beside it."""

import random

import pytest
import torch

from eagleray.engines.base import DraftSetting, FailedRequest, Generation, GenerationRequest
from eagleray.engines.native.config import NativeEngineConfig
from eagleray.engines.native.engine import NativeEngine
from eagleray.errors import EngineError
from eagleray.speculation.acceptance import Cycle
from eagleray.targets.decoder import TargetDecoder

PROMPT_LENGTHS = [5, 1, 9, 3, 30, 7, 2, 20, 4, 6]
NEW_TOKENS = 20


@pytest.fixture(scope="module")
def requests(make_requests):
    return make_requests(PROMPT_LENGTHS, NEW_TOKENS)


@pytest.fixture(scope="module")
def plain(make_engine, requests):
    """Each answer alone, by its request's id."""
    engine = make_engine(max_batch_size=1)
    return {request.request_id: engine.generate([request]).generations[0] for request in requests}


def drain(stream) -> dict[str, Generation]:
    outcomes = []
    while stream.unfinished:
        outcomes += stream.advance()
    assert not any(isinstance(outcome, FailedRequest) for outcome in outcomes)
    return {outcome.request_id: outcome for outcome in outcomes}


def setting(drafted, plain, scripted):
    return DraftSetting(source=scripted(tuple(plain.values()), frozenset([2])), depth=4) if drafted else None


@pytest.mark.parametrize("drafted", [False, True])
@pytest.mark.parametrize("max_batch_size", [1, 2, 4])
def test_requests_that_arrive_while_others_run_get_the_same_answers(
    make_engine, requests, plain, scripted, drafted, max_batch_size
):
    stream = make_engine(max_batch_size=max_batch_size).open_stream(draft=setting(drafted, plain, scripted))
    finished = {}
    for arrived, request in enumerate(requests, start=1):
        stream.submit(request)
        for _ in range(3):
            finished |= {generation.request_id: generation for generation in stream.advance()}
        assert stream.unfinished == arrived - len(finished)
    finished |= drain(stream)
    assert {name: one.answer_ids for name, one in finished.items()} == {
        name: one.answer_ids for name, one in plain.items()
    }


def test_any_order_of_submitting_and_cancelling_leaves_the_other_answers_alone(
    tiny_model, requests, plain, scripted
):
    """Bit by bit: the final states too, in rows that moved and caches that grew."""
    decoder = TargetDecoder.load(tiny_model[1], torch.float32, batch_invariant=True)
    engine = NativeEngine(decoder, NativeEngineConfig(max_batch_size=3), ())
    expected = {
        request.request_id: engine.generate([request], capture_layers=()).generations[0].captured.final_TD
        for request in requests
    }
    chance = random.Random(0)
    for round_number in range(6):
        stream = engine.open_stream(draft=setting(round_number % 2, plain, scripted), capture_layers=())
        waiting, submitted, cancelled, finished = list(requests), [], set(), {}
        chance.shuffle(waiting)
        while waiting or stream.unfinished:
            if waiting and chance.random() < 0.5:
                submitted.append(waiting.pop().request_id)
                stream.submit(next(request for request in requests if request.request_id == submitted[-1]))
            if submitted and chance.random() < 0.1:
                cancelled.add(chance.choice(submitted))
                stream.cancel(max(cancelled - finished.keys(), default="nobody"))
            finished |= {generation.request_id: generation for generation in stream.advance()}
        assert finished.keys() | cancelled == plain.keys()
        for name, generation in finished.items():
            assert generation.answer_ids == plain[name].answer_ids
            assert torch.equal(generation.captured.final_TD, expected[name])


def test_a_cancelled_request_frees_its_slot_at_once(make_engine, requests, plain):
    stream = make_engine(max_batch_size=2).open_stream()
    for request in requests[:3]:
        stream.submit(request)
    stream.advance()
    stream.cancel(requests[0].request_id)
    assert stream.unfinished == 2
    # Both that are left run side by side now: the late one needs no more than its own cycles.
    advances = 0
    finished = {}
    while stream.unfinished:
        advances += 1
        finished |= {generation.request_id: generation for generation in stream.advance()}
    assert advances == NEW_TOKENS - 1
    assert set(finished) == {request.request_id for request in requests[1:3]}
    assert all(one.answer_ids == plain[name].answer_ids for name, one in finished.items())


def test_a_request_that_waits_can_be_cancelled_and_asked_again(make_engine, requests, plain):
    stream = make_engine(max_batch_size=1).open_stream()
    stream.submit(requests[0])
    stream.submit(requests[1])
    stream.advance()
    stream.cancel(requests[1].request_id)
    stream.submit(requests[1])
    assert drain(stream).keys() == {requests[0].request_id, requests[1].request_id}


def test_ids_that_are_not_unfinished_are_not_cancelled(make_engine, requests):
    stream = make_engine().open_stream()
    stream.submit(requests[0])
    stream.cancel("nobody")
    assert drain(stream).keys() == {requests[0].request_id}
    stream.cancel(requests[0].request_id)
    assert stream.unfinished == 0


def test_a_bad_request_leaves_the_stream_unharmed(make_engine, requests, plain):
    stream = make_engine().open_stream()
    stream.submit(requests[0])
    with pytest.raises(EngineError, match="empty"):
        stream.submit(GenerationRequest(request_id="bad", prompt_ids=(), max_new_tokens=3))
    with pytest.raises(EngineError, match="'r0' is still unfinished"):
        stream.submit(requests[0])
    assert stream.unfinished == 1
    assert drain(stream)["r0"].answer_ids == plain["r0"].answer_ids


def test_an_empty_stream_has_nothing_to_do(make_engine):
    stream = make_engine().open_stream()
    assert stream.advance() == []
    assert (stream.unfinished, stream.delivered_tokens) == (0, 0)
    assert stream.times.prefill_s == 0


def test_prompts_that_wait_together_are_prefilled_together(tiny_model, make_requests, monkeypatch):
    """As many as max_prefill_tokens allow, 60 of 64; and beside those that decode then, as many as slots."""
    decoder = TargetDecoder.load(tiny_model[1], torch.float32)
    groups = []
    prefill = decoder.prefill

    def spy(ids_T, lengths, *rest):
        groups.append(list(lengths))
        return prefill(ids_T, lengths, *rest)

    monkeypatch.setattr(decoder, "prefill", spy)
    engine = NativeEngine(decoder, NativeEngineConfig(max_batch_size=6, max_prefill_tokens=64), ())
    stream = engine.open_stream()
    for request in make_requests([20, 16, 24, 30, 2, 3, 8, 1], 3):
        stream.submit(request)
    stream.advance()
    assert groups == [[20, 16, 24]]
    stream.advance()
    assert groups == [[20, 16, 24], [30, 2, 3]]
    drain(stream)
    assert groups == [[20, 16, 24], [30, 2, 3], [8, 1]]


def test_storage_follows_what_is_admitted(make_engine, make_requests):
    stream = make_engine(max_batch_size=8).open_stream()
    cache = stream._slots.cache
    short, long = make_requests([5, 40], 4)
    stream.submit(short)
    stream.advance()
    assert cache.keys[0].shape[::2] == (1, 16)
    stream.submit(long)
    stream.advance()
    assert cache.keys[0].shape[::2] == (2, 48)


def test_the_sliding_window_of_the_target_bounds_the_context(tmp_path):
    from transformers import MistralConfig, MistralForCausalLM

    config = MistralConfig(
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        vocab_size=50,
        max_position_embeddings=64,
        sliding_window=12,
    )
    MistralForCausalLM(config).save_pretrained(tmp_path)
    engine = NativeEngine(TargetDecoder.load(tmp_path, torch.float32), NativeEngineConfig(), ())
    request = GenerationRequest(request_id="a", prompt_ids=(1, 2, 3), max_new_tokens=40)
    (generation,) = engine.generate([request]).generations
    assert (len(generation.answer_ids), generation.finish_reason) == (9, "length")


def test_time_between_calls_is_not_the_streams(make_engine, requests):
    stream = make_engine().open_stream()
    stream.submit(requests[0])
    drain(stream)
    before = stream.times
    assert stream.times == before
    assert min(before.prefill_s, before.verify_s, before.host_s) > 0


class FailingStream:
    """Gives up on everything."""

    def __init__(self):
        self.unfinished = 0
        self.delivered_tokens = 0

    def submit(self, request):
        self.unfinished += 1

    def advance(self):
        self.unfinished = 0
        return [FailedRequest(request_id="r0", reason="the server went away")]


def test_a_list_with_a_failed_request_fails_with_its_reason(make_engine, requests, monkeypatch):
    engine = make_engine()
    monkeypatch.setattr(engine, "open_stream", lambda **settings: FailingStream())
    with pytest.raises(EngineError, match=r"'r0'.*the server went away"):
        engine.generate(requests[:1])


def test_a_stream_counts_the_tokens_of_its_cycles(make_engine, requests):
    stream = make_engine(max_batch_size=3).open_stream()
    for request in requests:
        stream.submit(request)
    finished = drain(stream)
    assert stream.delivered_tokens == len(requests) * (NEW_TOKENS - 1)
    assert finished["r0"].cycles == (Cycle(drafted=0, accepted=0, delivered=1),) * (NEW_TOKENS - 1)

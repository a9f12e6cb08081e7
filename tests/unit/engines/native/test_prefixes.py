"""Prompts that begin alike: what is kept of them, and that reuse changes no bit."""

from dataclasses import replace

import pytest
import torch

from eagleray.engines.base import DraftSetting, GenerationRequest
from eagleray.engines.native.config import NativeEngineConfig
from eagleray.engines.native.engine import NativeEngine
from eagleray.engines.native.prefixes import Block, PrefixCache, block_keys
from eagleray.engines.native.rows import Row


@pytest.fixture
def make_long_engine(long_decoder):
    def make(**settings):
        return NativeEngine(long_decoder, NativeEngineConfig(**settings), ())

    return make


@pytest.fixture
def system(make_requests):
    """150 tokens that prompts have in common."""
    return make_requests([150], 1)[0].prompt_ids


def run(stream, *requests):
    for request in requests:
        stream.submit(request)
    answers = {}
    while stream.unfinished:
        answers |= {one.request_id: one for one in stream.advance()}
    return [answers[request.request_id] for request in requests]


def test_a_shared_beginning_is_copied_and_changes_no_bit(make_long_engine, make_requests, system):
    """Of 150 common tokens two whole blocks are reused; a prompt of 129 common tokens reuses both, one of 128
    only the first, as its last token is always computed."""
    tails = make_requests([40, 100, 5], 10)
    requests = [replace(one, prompt_ids=system + one.prompt_ids) for one in tails]
    for length in (129, 128):
        requests.append(replace(tails[0], request_id=f"cut-{length}", prompt_ids=system[:length]))
    stream = make_long_engine().open_stream(capture_layers=(0, 2))
    seen = [run(stream, request)[0] for request in requests]
    assert [one.reused_prompt_tokens for one in seen] == [0, 128, 128, 128, 64]
    expected = make_long_engine(prefix_cache_gib=0).generate(requests, capture_layers=(0, 2)).generations
    for one, other in zip(seen, expected, strict=True):
        assert one.answer_ids == other.answer_ids
        assert torch.equal(one.captured.final_TD, other.captured.final_TD)
        assert torch.equal(one.captured.features_TLD, other.captured.features_TLD)


def test_a_conversation_goes_on_from_its_prompt(make_long_engine, make_requests):
    """The answer is run again, as a prompt: keys of decoding agree with those of a prompt to rounding
    only."""
    first, more = make_requests([100, 30], 40)
    stream = make_long_engine().open_stream()
    (answer,) = run(stream, first)
    following = replace(more, prompt_ids=first.prompt_ids + answer.answer_ids + more.prompt_ids)
    (continued,) = run(stream, following)
    (again,) = run(stream, following)
    assert (continued.reused_prompt_tokens, again.reused_prompt_tokens) == (64, 128)
    (expected,) = make_long_engine(prefix_cache_gib=0).generate([following]).generations
    assert continued.answer_ids == again.answer_ids == expected.answer_ids


def test_answers_of_one_prompt_run_it_once(make_long_engine, system):
    """They are submitted together; three of the four wait for the first one's blocks."""
    requests = [
        GenerationRequest(request_id=str(n), prompt_ids=system, max_new_tokens=5, seed=n) for n in range(4)
    ]
    stream = make_long_engine().open_stream()
    answers = run(stream, *requests)
    assert [one.reused_prompt_tokens for one in answers] == [0, 128, 128, 128]
    assert len({one.answer_ids for one in answers}) == 1


@pytest.mark.parametrize("wrong_slots", [frozenset(), frozenset([1])])
def test_a_drafter_is_told_of_what_was_copied(make_long_engine, make_requests, system, scripted, wrong_slots):
    """The script is looked up by all tokens of the prompt, so a missing one would draft nothing."""
    requests = [replace(one, prompt_ids=system + one.prompt_ids) for one in make_requests([10, 20, 30], 12)]
    engine = make_long_engine()
    plain = engine.generate(requests)
    stream = engine.open_stream(draft=DraftSetting(source=scripted(plain.generations, wrong_slots), depth=3))
    drafted = [run(stream, request)[0] for request in requests]
    assert [one.reused_prompt_tokens for one in drafted] == [0, 128, 128]
    accepted = 1 if wrong_slots else 3
    for one, other in zip(drafted, plain.generations, strict=True):
        assert one.answer_ids == other.answer_ids
        assert {cycle.accepted for cycle in one.cycles[:-1]} == {accepted}


def test_only_whole_equal_beginnings_have_equal_keys():
    ids = tuple(range(200))
    keys = block_keys(ids)
    assert len(keys) == 3
    assert block_keys(ids[:128]) == keys[:2]
    assert block_keys(ids[:63]) == ()
    changed = block_keys((7, *ids[1:]))
    assert not set(changed) & set(keys)
    assert block_keys((*ids[:70], 7, *ids[71:]))[:1] == keys[:1]


def row(ids) -> Row:
    request = GenerationRequest(request_id="r", prompt_ids=tuple(ids), max_new_tokens=1)
    return Row(request, 1, frozenset())


BLOCK = Block(keys_values=torch.zeros(20), features_SLD=torch.zeros(4), final_SD=torch.zeros(1))


def test_the_least_recently_used_blocks_go_first_and_the_last_of_a_prompt_before_its_first():
    """100 bytes a block, room for three."""
    cache = PrefixCache(max_bytes=350)
    one, two = row(range(1000, 1129)), row(range(2000, 2129))
    for number in (0, 1):
        cache.put(one.block_keys[: number + 1], BLOCK)
    cache.put(two.block_keys[:1], BLOCK)
    assert (cache.matched(one), cache.matched(two)) == (2, 1)
    cache.take(one)
    cache.put(two.block_keys[:2], BLOCK)
    # The second prompt was just used, so the end of the first one goes.
    assert (cache.matched(one), cache.matched(two)) == (1, 2)
    cache.put(row(range(3000, 3129)).block_keys[:1], BLOCK)
    assert (cache.matched(one), cache.matched(two)) == (0, 2)


def test_nothing_is_kept_without_memory_for_it(make_long_engine, system):
    request = GenerationRequest(request_id="r", prompt_ids=system, max_new_tokens=2)
    stream = make_long_engine(prefix_cache_gib=0).open_stream()
    assert [run(stream, request)[0].reused_prompt_tokens for _ in range(2)] == [0, 0]
    assert not PrefixCache(max_bytes=0).awaits(row(range(200)), [row(range(200))])

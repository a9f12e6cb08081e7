"""Who runs when: prompts in pieces beside decoding rows, a bounded cache, nobody overtaken, slots freed at
once."""

import pytest
import torch

from eagleray.engines.base import DraftSetting
from eagleray.engines.native.config import NativeEngineConfig
from eagleray.engines.native.engine import NativeEngine
from eagleray.errors import EngineError

POSITION_BYTES = 2 * 4 * 2 * 16 * 4
"""Keys and values, layers, key-value heads, width of a head, bytes of a number."""
PROMPT_LENGTHS = [200, 130, 64, 65, 1, 300, 128, 30]


@pytest.fixture
def make_long_engine(long_decoder):
    def make(cache_positions=None, **settings):
        gib = None if cache_positions is None else cache_positions * POSITION_BYTES / 2**30
        return NativeEngine(long_decoder, NativeEngineConfig(kv_cache_gib=gib, **settings), ())

    return make


@pytest.fixture
def requests(make_requests):
    return make_requests(PROMPT_LENGTHS, 8)


def ids_of(run):
    return [generation.answer_ids for generation in run.generations]


def finals_of(run):
    return [generation.captured.final_TD for generation in run.generations]


def test_prompts_in_pieces_give_the_bits_of_whole_ones(make_long_engine, requests):
    whole = make_long_engine(prefix_cache_gib=0).generate(requests, capture_layers=(1,))
    pieces = make_long_engine(
        max_batch_size=3, max_prefill_tokens=64, prefill_tokens_per_cycle=64, prefix_cache_gib=0
    ).generate(requests, capture_layers=(1,))
    assert ids_of(pieces) == ids_of(whole)
    for seen_TD, expected_TD in zip(finals_of(pieces), finals_of(whole), strict=True):
        assert torch.equal(seen_TD, expected_TD)


def test_a_drafter_changes_no_id_while_prompts_come_in_pieces(make_long_engine, requests, scripted):
    engine = make_long_engine(max_batch_size=3, prefill_tokens_per_cycle=64)
    plain = engine.generate(requests)
    draft = DraftSetting(source=scripted(plain.generations, frozenset([2])), depth=4)
    drafted = engine.generate(requests, draft=draft)
    assert ids_of(drafted) == ids_of(plain)
    assert {(c.accepted, c.delivered) for g in drafted.generations for c in g.cycles[:-1]} == {(2, 3)}


def test_a_long_prompt_lets_running_answers_go_on(make_long_engine, make_requests):
    """300 tokens at 128 a cycle come in pieces of 128, 128 and 44, with a cycle after each."""
    short, long = make_requests([5, 300], 20)
    stream = make_long_engine(prefill_tokens_per_cycle=128).open_stream()
    stream.submit(short)
    stream.advance()
    stream.submit(long)
    grown = []
    for _ in range(4):
        stream.advance()
        grown.append({name: len(ids) for name, ids in stream.new_ids().items()})
    # The first tells of the two cycles before it, too.
    assert grown == [
        {"r0": 3},
        {"r0": 1},
        {"r0": 1, "r1": 2},
        {"r0": 1, "r1": 1},
    ]


def test_prompts_that_fit_into_one_share_run_together(make_long_engine, make_requests):
    first, *others = make_requests([5, 40, 40, 40], 9)
    stream = make_long_engine(prefill_tokens_per_cycle=100).open_stream()
    stream.submit(first)
    stream.advance()
    for request in others:
        stream.submit(request)
    running = []
    for _ in range(2):
        stream.advance()
        running.append(len(stream.new_ids()))
    assert running == [3, 4]


def test_rows_wait_while_the_cache_could_not_hold_them(make_long_engine, requests):
    """A row of up to 308 positions takes 320; with 700 there are at most two rows beside it, and more of the
    shorter ones. The cache itself never grows beyond."""
    engine = make_long_engine(cache_positions=700, prefix_cache_gib=0)
    stream = engine.open_stream()
    for request in requests:
        stream.submit(request)
    answers, most_rows = {}, 0
    while stream.unfinished:
        answers |= {one.request_id: one.answer_ids for one in stream.advance()}
        rows, _, length, _ = stream._slots.cache.keys[0].shape
        assert rows * length <= 700
        most_rows = max(most_rows, len(stream._slots.rows))
        longest = [len(row.request.prompt_ids) for row in stream._slots.rows]
        assert max(longest, default=0) < 300 or len(longest) <= 2
    assert most_rows > 2
    expected = make_long_engine().generate(requests).generations
    assert answers == {one.request_id: one.answer_ids for one in expected}


def test_a_request_that_can_never_fit_is_refused_by_name_and_number(
    make_long_engine, make_requests, scripted
):
    fits, too_long = make_requests([20, 200], 8)
    engine = make_long_engine(cache_positions=207)
    stream = engine.open_stream()
    with pytest.raises(EngineError, match=r"'r1' may come to take 208.*holds 207.*kv_cache_gib"):
        stream.submit(too_long)
    stream.submit(fits)
    assert stream.unfinished == 1
    # 184 and 8 tokens are 192 positions, but not with four for a draft.
    (row,) = make_requests([184], 8)
    make_long_engine(cache_positions=192).open_stream().submit(row)
    drafting = DraftSetting(source=scripted(()), depth=4)
    with pytest.raises(EngineError, match="room for drafts"):
        make_long_engine(cache_positions=192).open_stream(draft=drafting).submit(row)


def test_nobody_is_overtaken(make_long_engine, make_requests):
    """The long request waits for the first to end, and the short one behind it waits, too."""
    stream = make_long_engine(cache_positions=400).open_stream()
    for request in make_requests([50, 300, 5], 6):
        stream.submit(request)
    order = []
    while stream.unfinished:
        order += [one.request_id for one in stream.advance()]
    assert order == ["r0", "r1", "r2"]


def test_a_prompt_can_be_cancelled_between_its_pieces(make_long_engine, make_requests):
    stream = make_long_engine(max_prefill_tokens=64).open_stream()
    long, short = make_requests([300, 5], 3)
    stream.submit(long)
    assert stream.advance() == []
    assert stream._slots.entering[0].prefilled == 64
    stream.cancel("r0")
    stream.submit(short)
    (answer,) = [one for _ in range(3) for one in stream.advance()]
    assert answer.request_id == "r1"


@pytest.mark.parametrize("withdrawn", ["r0", "r1", "r2"])
def test_a_cancelled_request_frees_its_slot_at_once(make_long_engine, make_requests, withdrawn):
    """One that decodes, one whose prompt is in pieces, one that waits: the others are as if it had never
    been."""
    requests = make_requests([70, 300, 90, 40], 12)
    engine = make_long_engine(max_batch_size=2, prefill_tokens_per_cycle=64, prefix_cache_gib=0)
    stream = engine.open_stream()
    stream.submit(requests[0])
    stream.advance()
    for request in requests[1:]:
        stream.submit(request)
    stream.advance()
    slots = stream._slots
    assert (len(slots.rows), len(slots.entering), slots.free) == (1, 1, 0)
    stream.cancel(withdrawn)
    assert slots.free == (0 if withdrawn == "r2" else 1)
    assert stream.unfinished == 3
    answers = {}
    while stream.unfinished:
        answers |= {one.request_id: one.answer_ids for one in stream.advance()}
    alone = {one.request_id: one.answer_ids for one in engine.generate(requests).generations}
    assert answers == {name: ids for name, ids in alone.items() if name != withdrawn}
    assert set(slots.cache.lengths) == {0}

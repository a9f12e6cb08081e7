"""Greedy answers have the same ids with any drafter, in any company."""

from dataclasses import replace

import pytest
import torch

from eagleray.drafters.base import NO_DRAFT, DraftSession, DraftSource
from eagleray.engines.base import DraftSetting, GenerationRequest
from eagleray.engines.native.config import NativeEngineConfig
from eagleray.engines.native.engine import NativeEngine
from eagleray.errors import EngineError
from eagleray.speculation.acceptance import summarize
from eagleray.targets.decoder import TargetDecoder

CONTEXT_TOKENS = 64
PROMPT_LENGTHS = [5, 1, 9, 3, 12, 7, 2, 20, 4, 6]
NEW_TOKENS = 24
EVERY_SLOT = frozenset(range(8))
WRONG_SLOTS = {
    "SELF": frozenset(),
    "NEVER": EVERY_SLOT,
    "MIX(1)": frozenset([1]),
    "MIX(2)": frozenset([2]),
}


@pytest.fixture(scope="module")
def requests(make_requests):
    return make_requests(PROMPT_LENGTHS, NEW_TOKENS)


@pytest.fixture(scope="module")
def plain(make_engine, requests):
    """Plain answers, decoded together."""
    return make_engine(max_batch_size=16).generate(requests).generations


@pytest.fixture(scope="module")
def scripts(make_engine, make_requests):
    """Plain answers that go on past the end of any answer in these tests."""
    return make_engine().generate(make_requests(PROMPT_LENGTHS, 40)).generations


def ids_of(run):
    return [generation.answer_ids for generation in run.generations]


def taus(run):
    return [summarize(generation.cycles).acceptance_length for generation in run.generations]


def test_plain_decoding_matches_transformers(tiny_model, make_engine, requests, plain):
    reference, _ = tiny_model
    for request, generation in zip(requests, plain, strict=True):
        ids_BT = torch.tensor([request.prompt_ids])
        output = reference.generate(
            ids_BT, attention_mask=torch.ones_like(ids_BT), max_new_tokens=NEW_TOKENS, do_sample=False
        )
        assert tuple(output[0, ids_BT.shape[1] :].tolist()) == generation.answer_ids


def test_plain_cycles_deliver_one_token_each(plain):
    for generation in plain:
        assert [(c.drafted, c.accepted, c.delivered) for c in generation.cycles] == [(0, 0, 1)] * (
            NEW_TOKENS - 1
        )


@pytest.mark.parametrize("batch_size", [1, 3, 8])
@pytest.mark.parametrize("depth", [1, 2, 4, 8])
@pytest.mark.parametrize("drafter", WRONG_SLOTS)
def test_a_drafter_changes_no_id(make_engine, requests, plain, scripts, scripted, drafter, depth, batch_size):
    draft = DraftSetting(source=scripted(scripts, WRONG_SLOTS[drafter]), depth=depth)
    run = make_engine(max_batch_size=batch_size).generate(requests, draft=draft)
    assert ids_of(run) == [generation.answer_ids for generation in plain]
    assert [generation.request_id for generation in run.generations] == [r.request_id for r in requests]
    for generation in run.generations:
        assert 1 + sum(cycle.delivered for cycle in generation.cycles) == NEW_TOKENS


@pytest.mark.parametrize("depth", [1, 2, 4, 8])
def test_a_drafter_that_is_never_right_has_tau_one(make_engine, requests, scripts, scripted, depth):
    draft = DraftSetting(source=scripted(scripts, EVERY_SLOT), depth=depth)
    assert taus(make_engine(max_batch_size=3).generate(requests, draft=draft)) == [1.0] * len(requests)


@pytest.mark.parametrize("depth", [1, 2, 4, 8])
def test_a_drafter_that_is_always_right_delivers_depth_plus_one(
    make_engine, requests, scripts, scripted, depth
):
    draft = DraftSetting(source=scripted(scripts), depth=depth)
    for generation in make_engine(max_batch_size=3).generate(requests, draft=draft).generations:
        *full, last = generation.cycles
        assert {(c.drafted, c.accepted, c.delivered) for c in full} <= {(depth, depth, depth + 1)}
        # The last round drafts no more than the room that is left, less the bonus token.
        assert (last.drafted, last.accepted) == (last.delivered - 1, last.delivered - 1)


def test_a_drafter_wrong_at_its_third_slot_delivers_three(make_engine, requests, scripts, scripted):
    draft = DraftSetting(source=scripted(scripts, frozenset([2])), depth=4)
    for generation in make_engine().generate(requests, draft=draft).generations:
        assert [(c.accepted, c.delivered) for c in generation.cycles[:-1]] == [(2, 3)] * (
            len(generation.cycles) - 1
        )


@pytest.mark.parametrize("place", [2, 3, 4])
@pytest.mark.parametrize("batch_size", [1, 4])
def test_a_stop_token_inside_an_accepted_draft_ends_the_answer(
    make_engine, requests, plain, scripts, scripted, place, batch_size
):
    """The third, fourth or fifth new id becomes a stop id; depth 4 would run past each of them."""
    stop_ids = tuple({generation.answer_ids[place] for generation in plain})
    engine = make_engine(stop_ids, max_batch_size=batch_size)
    without = engine.generate(requests)
    within = engine.generate(requests, draft=DraftSetting(source=scripted(scripts), depth=4))
    assert ids_of(within) == ids_of(without)
    for full, generation in zip(plain, within.generations, strict=True):
        first = next(i for i, token in enumerate(full.answer_ids) if token in stop_ids)
        assert generation.answer_ids == full.answer_ids[: first + 1]
        assert generation.finish_reason == "stop"
        assert sum(cycle.delivered for cycle in generation.cycles) == first


def test_requests_of_one_batch_draft_as_deep_as_each_asks(make_engine, requests, plain, scripts, scripted):
    depths = [0, 1, 2, 3, None, 9, 0, 4, 2, 1]
    asked = [replace(one, draft_depth=depth) for one, depth in zip(requests, depths, strict=True)]
    draft = DraftSetting(source=scripted(scripts), depth=4)
    run = make_engine(max_batch_size=4).generate(asked, draft=draft)
    assert ids_of(run) == [generation.answer_ids for generation in plain]
    for depth, generation in zip(depths, run.generations, strict=True):
        most = min(4 if depth is None else depth, 4)
        assert {(c.drafted, c.delivered) for c in generation.cycles[:-1]} == {(most, most + 1)}


def test_a_stop_token_in_a_rejected_draft_does_not_end_the_answer(
    make_engine, requests, plain, scripts, scripted
):
    emitted = {token for generation in scripts for token in generation.answer_ids}
    proposed_only = {(token + 1) % 300 for token in emitted} - emitted
    draft = DraftSetting(source=scripted(scripts, EVERY_SLOT), depth=4)
    run = make_engine(tuple(proposed_only)).generate(requests, draft=draft)
    assert ids_of(run) == [generation.answer_ids for generation in plain]


@pytest.mark.parametrize("max_new_tokens", [1, 2, 5, 9])
def test_no_more_than_the_asked_tokens_are_emitted(
    make_engine, make_requests, plain, scripts, scripted, max_new_tokens
):
    draft = DraftSetting(source=scripted(scripts), depth=8)
    run = make_engine(max_batch_size=3).generate(make_requests(PROMPT_LENGTHS, max_new_tokens), draft=draft)
    assert ids_of(run) == [generation.answer_ids[:max_new_tokens] for generation in plain]
    assert {generation.finish_reason for generation in run.generations} == {"length"}


def test_requests_of_unequal_limits_share_a_batch(make_engine, make_requests, plain, scripts, scripted):
    requests = [
        GenerationRequest(request_id=r.request_id, prompt_ids=r.prompt_ids, max_new_tokens=1 + 2 * index)
        for index, r in enumerate(make_requests(PROMPT_LENGTHS, 1))
    ]
    run = make_engine(max_batch_size=4).generate(
        requests, draft=DraftSetting(source=scripted(scripts), depth=4)
    )
    assert ids_of(run) == [g.answer_ids[: 1 + 2 * index] for index, g in enumerate(plain)]


@pytest.mark.parametrize("wrong_slots", [frozenset(), frozenset([1])])
def test_the_context_window_bounds_prompt_and_answer(make_engine, make_requests, scripted, wrong_slots):
    requests = make_requests([50, 58, 61, 62, 63], 100)
    engine = make_engine()
    without = engine.generate(requests)
    draft = DraftSetting(source=scripted(without.generations, wrong_slots), depth=4)
    within = engine.generate(requests, draft=draft)
    assert ids_of(within) == ids_of(without)
    for request, generation in zip(requests, within.generations, strict=True):
        assert len(request.prompt_ids) + len(generation.answer_ids) == CONTEXT_TOKENS
        assert generation.finish_reason == "length"


def test_a_narrower_window_may_be_set(make_engine, requests, plain):
    run = make_engine(context_window_tokens=22).generate(requests)
    assert ids_of(run) == [
        full.answer_ids[: 22 - len(request.prompt_ids)] for request, full in zip(requests, plain, strict=True)
    ]


@pytest.mark.parametrize("length", [64, 65])
def test_a_prompt_that_fills_the_window_is_refused_with_both_numbers(make_engine, make_requests, length):
    with pytest.raises(EngineError, match=f"{length} tokens.*64"):
        make_engine().generate(make_requests([3, length], 5))


@pytest.mark.parametrize(
    ("prompt_ids", "max_new_tokens", "message"),
    [((), 5, "empty"), ((1, 300), 5, "299"), ((-1,), 5, "-1"), ((1,), 0, "max_new_tokens")],
)
def test_a_request_that_cannot_be_served_is_refused(make_engine, prompt_ids, max_new_tokens, message):
    request = GenerationRequest(request_id="bad-one", prompt_ids=prompt_ids, max_new_tokens=max_new_tokens)
    with pytest.raises(EngineError, match=f"'bad-one'.*{message}"):
        make_engine().generate([request])


@pytest.mark.parametrize("depth", [0, 4])
def test_a_depth_the_drafter_cannot_reach_is_refused(make_engine, requests, scripts, scripted, depth):
    source = scripted(scripts)
    source.max_depth = 3
    with pytest.raises(EngineError, match=f"depth is {depth}"):
        make_engine().generate(requests, draft=DraftSetting(source=source, depth=depth))


@pytest.mark.parametrize("layers", [(4,), (2, 1), (1, 1), (-1,)])
def test_layers_the_target_does_not_have_are_refused(make_engine, requests, layers):
    with pytest.raises(EngineError, match="4 layers"):
        make_engine().generate(requests, capture_layers=layers)


def test_no_requests_are_answered_with_nothing(make_engine):
    assert make_engine().generate([]).generations == ()


@pytest.mark.parametrize("wrong_slots", [None, frozenset(), frozenset([1])])
def test_captured_features_are_those_of_the_finished_sequence(
    make_engine, decoder, requests, scripts, scripted, wrong_slots
):
    draft = None if wrong_slots is None else DraftSetting(source=scripted(scripts, wrong_slots), depth=4)
    run = make_engine(max_batch_size=3).generate(requests, draft=draft, capture_layers=(0, 3))
    for generation in run.generations:
        ids = generation.prompt_ids + generation.answer_ids[:-1]
        features_BTLD, final_BTD = decoder.capture(torch.tensor([ids]), torch.tensor([len(ids)]), (0, 3))
        torch.testing.assert_close(generation.captured.features_TLD, features_BTLD[0], atol=1e-4, rtol=0)
        torch.testing.assert_close(generation.captured.final_TD, final_BTD[0], atol=1e-4, rtol=0)


def test_a_batch_invariant_decoder_computes_the_same_bits_with_and_without_a_drafter(
    tiny_model, requests, scripts, scripted
):
    _, folder = tiny_model
    decoder = TargetDecoder.load(folder, torch.float32, batch_invariant=True)
    finals = []
    for batch_size, draft in ((1, None), (8, None), (3, DraftSetting(source=scripted(scripts), depth=4))):
        engine = NativeEngine(decoder, NativeEngineConfig(max_batch_size=batch_size))
        run = engine.generate(requests, draft=draft, capture_layers=())
        finals.append([generation.captured.final_TD for generation in run.generations])
    for alone_TD, together_TD, drafted_TD in zip(*finals, strict=True):
        assert torch.equal(alone_TD, together_TD)
        assert torch.equal(alone_TD, drafted_TD)


def test_features_end_where_a_stop_token_cut_the_draft(make_engine, requests, plain, scripts, scripted):
    stop_ids = tuple({generation.answer_ids[3] for generation in plain})
    draft = DraftSetting(source=scripted(scripts), depth=8)
    for generation in make_engine(stop_ids).generate(requests, draft=draft, capture_layers=()).generations:
        tokens = len(generation.prompt_ids) + len(generation.answer_ids)
        assert generation.captured.features_TLD.shape == (tokens - 1, 0, 64)
        assert generation.captured.final_TD.shape == (tokens - 1, 64)


def test_captured_features_can_enter_a_training_step(make_engine, requests):
    captured = make_engine().generate(requests[:1], capture_layers=(1,)).generations[0].captured
    weight = torch.ones(64, requires_grad=True)
    (captured.features_TLD * weight).sum().backward()
    assert weight.grad is not None


class Wrapped(DraftSource):
    """A drafter made by hand, seen through another session."""

    tapped_layers = (1, 2)
    max_depth = None

    def __init__(self, inner, session_class):
        self.inner = inner
        self.session_class = session_class

    def open_session(self, max_rows, max_length):
        self.session = self.session_class(self.inner.open_session(max_rows, max_length), max_rows)
        return self.session


class Forwarding(DraftSession):
    def __init__(self, inner, max_rows):
        self.inner = inner

    def observe(self, committed):
        self.inner.observe(committed)

    def draft(self, num_rows, depth):
        return self.inner.draft(num_rows, depth)

    def reset(self, row):
        self.inner.reset(row)

    def move(self, source, destination):
        self.inner.move(source, destination)


class Diary(Forwarding):
    """Writes down what it is told about each row, and keeps it when the row is given up."""

    def __init__(self, inner, max_rows):
        super().__init__(inner, max_rows)
        self.rows = [[] for _ in range(max_rows)]
        self.closed = []

    def observe(self, committed):
        super().observe(committed)
        rows, counts = committed.rows_B.tolist(), committed.counts_B.tolist()
        for place, (row, count) in enumerate(zip(rows, counts, strict=True)):
            told = zip(
                committed.next_ids_BQ[place, :count].tolist(),
                committed.features_BQLD[place, :count],
                strict=True,
            )
            self.rows[row].extend(told)

    def reset(self, row):
        super().reset(row)
        self.closed.append(self.rows[row])
        self.rows[row] = []

    def move(self, source, destination):
        super().move(source, destination)
        self.closed.append(self.rows[destination])
        self.rows[destination], self.rows[source] = self.rows[source], []


@pytest.mark.parametrize("wrong_slots", [frozenset(), frozenset([1]), EVERY_SLOT])
def test_a_drafter_is_told_every_position_once_with_its_features(
    make_engine, decoder, requests, scripts, scripted, wrong_slots
):
    """In order, up to the last cycle, whatever slots the row moved through."""
    source = Wrapped(scripted(scripts, wrong_slots), Diary)
    run = make_engine(max_batch_size=3).generate(
        requests, draft=DraftSetting(source=source, depth=4), capture_layers=(0, 2)
    )
    diaries = {tuple(token for token, _ in told): told for told in source.session.closed if told}
    assert len(diaries) == len(requests)
    for generation in run.generations:
        ids = generation.prompt_ids + generation.answer_ids
        told = diaries[ids[1 : len(ids) - generation.cycles[-1].delivered]]
        ids_BT = torch.tensor([ids[: len(told)]])
        features_BTLD, _ = decoder.capture(ids_BT, torch.tensor([len(told)]), (1, 2))
        seen_TLD = torch.stack([features for _, features in told])
        torch.testing.assert_close(seen_TLD, features_BTLD[0], atol=1e-4, rtol=0)


class Hesitant(Forwarding):
    """Keeps the first proposal of a draft and leaves the other slots empty."""

    def draft(self, num_rows, depth):
        draft_BK = super().draft(num_rows, depth)
        draft_BK[:, 1:] = NO_DRAFT
        return draft_BK


def test_empty_slots_are_neither_drafted_nor_verified(make_engine, requests, plain, scripts, scripted):
    draft = DraftSetting(source=Wrapped(scripted(scripts), Hesitant), depth=4)
    run = make_engine(max_batch_size=3).generate(requests, draft=draft)
    assert ids_of(run) == [generation.answer_ids for generation in plain]
    for generation in run.generations:
        assert {(c.drafted, c.accepted, c.delivered) for c in generation.cycles[:-1]} == {(1, 1, 2)}


def test_progress_adds_up_to_what_the_cycles_delivered(make_engine, requests, scripts, scripted):
    reported = []
    run = make_engine(max_batch_size=3).generate(
        requests, draft=DraftSetting(source=scripted(scripts), depth=4), on_progress=reported.append
    )
    assert sum(reported) == sum(c.delivered for g in run.generations for c in g.cycles)
    assert min(reported) >= 1


def test_times_add_up_to_less_than_the_call_and_name_every_phase(make_engine, requests, scripts, scripted):
    times = make_engine().generate(requests, draft=DraftSetting(source=scripted(scripts), depth=2)).times
    assert min(times.prefill_s, times.draft_s, times.verify_s, times.host_s) > 0
    assert times.decode_s == pytest.approx(times.draft_s + times.verify_s + times.host_s)

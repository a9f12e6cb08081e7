"""What a server promises: stop strings, penalties and log probabilities, the same with any drafter."""

from dataclasses import replace

import pytest
import torch

from eagleray.engines.base import DraftSetting, GenerationRequest
from eagleray.engines.native.config import NativeEngineConfig
from eagleray.engines.native.engine import NativeEngine
from eagleray.errors import EngineError
from eagleray.speculation.config import LogitAdjustments, SamplingConfig, TreeSetting

PROMPT_LENGTHS = [5, 1, 9, 12]
NEW_TOKENS = 20
DRAFTERS = [frozenset(), frozenset([1]), frozenset(range(8))]
DEPTHS = [1, 2, 4, 8]
ADJUSTMENTS = [
    LogitAdjustments(frequency_penalty=1.5),
    LogitAdjustments(presence_penalty=1.5),
    LogitAdjustments(repetition_penalty=1.4),
    LogitAdjustments(frequency_penalty=0.7, presence_penalty=0.3, repetition_penalty=1.1),
]


def show(ids):
    """Every id is a character."""
    return "".join(chr(0x4E00 + token) for token in ids)


@pytest.fixture(scope="module")
def engine(decoder) -> NativeEngine:
    return NativeEngine(decoder, NativeEngineConfig(max_batch_size=3, batch_invariant=False), (), show)


@pytest.fixture(scope="module")
def requests(make_requests):
    return make_requests(PROMPT_LENGTHS, NEW_TOKENS)


@pytest.fixture(scope="module")
def scripts(make_engine, make_requests):
    return make_engine().generate(make_requests(PROMPT_LENGTHS, 40)).generations


def settings(scripted, answers):
    """Plain decoding, and every drafter and depth, as a chain and as a tree."""
    chains = [
        DraftSetting(source=scripted(answers, wrong), depth=depth) for wrong in DRAFTERS for depth in DEPTHS
    ]
    return [*chains, replace(chains[2], tree=TreeSetting(top_k=2, nodes=6))]


@pytest.mark.parametrize(("first", "length"), [(0, 1), (2, 1), (3, 2), (4, 3), (7, 4)])
def test_a_stop_string_ends_the_answer_at_the_same_token_with_any_drafter(
    engine, requests, scripts, scripted, first, length
):
    ids = scripts[0].answer_ids
    stop = show(ids[first : first + length])
    ends = show(ids).find(stop) + length
    request = replace(requests[0], stop_strings=("never", stop))
    for draft in [None, *settings(scripted, scripts)]:
        (generation,) = engine.generate([request], draft=draft).generations
        assert generation.answer_ids == ids[:ends]
        assert (generation.finish_reason, generation.stop_string) == ("stop", stop)
        assert sum(cycle.delivered for cycle in generation.cycles) == ends - 1


def test_an_answer_without_its_stop_string_ends_at_its_length(engine, requests):
    (generation,) = engine.generate([replace(requests[0], stop_strings=("never",))]).generations
    assert (generation.finish_reason, generation.stop_string) == ("length", None)
    assert len(generation.answer_ids) == NEW_TOKENS


def by_hand(decoder, request):
    """One token after another: the whole sequence anew, and the definition of each adjustment."""
    rules, ids = request.adjustments, list(request.prompt_ids)
    for _ in range(request.max_new_tokens):
        _, final_1TD = decoder.capture(torch.tensor([ids]), torch.tensor([len(ids)]), ())
        logits_V = decoder.logits(final_1TD[0, -1:])[0]
        answer = ids[len(request.prompt_ids) :]
        for token, bias in rules.logit_bias.items():
            logits_V[token] += bias
        for token in set(ids):
            factor = rules.repetition_penalty
            logits_V[token] = logits_V[token] / factor if logits_V[token] > 0 else logits_V[token] * factor
        for token in set(answer):
            logits_V[token] -= rules.frequency_penalty * answer.count(token) + rules.presence_penalty
        ids.append(int(logits_V.argmax()))
    return tuple(ids[len(request.prompt_ids) :])


@pytest.mark.parametrize("rules", ADJUSTMENTS)
def test_penalties_count_the_draft_before_a_position_and_nothing_after_it(
    decoder, engine, requests, scripted, rules
):
    adjusted = [replace(request, adjustments=rules) for request in requests]
    expected = [by_hand(decoder, request) for request in adjusted]
    plain = engine.generate(adjusted).generations
    assert [one.answer_ids for one in plain] == expected
    assert expected != [one.answer_ids for one in engine.generate(requests).generations]
    for draft in settings(scripted, plain):
        run = engine.generate(adjusted, draft=draft)
        assert [one.answer_ids for one in run.generations] == expected


def test_a_drafter_that_is_right_is_accepted_under_penalties(engine, requests, scripted):
    adjusted = [replace(request, adjustments=ADJUSTMENTS[-1]) for request in requests]
    plain = engine.generate(adjusted).generations
    for one in engine.generate(adjusted, draft=DraftSetting(source=scripted(plain), depth=4)).generations:
        assert all(cycle.accepted == cycle.drafted for cycle in one.cycles)


def test_a_banned_token_never_appears_and_its_neighbours_keep_their_ids(engine, requests, scripts, scripted):
    banned = scripts[0].answer_ids[3]
    first = replace(requests[0], adjustments=LogitAdjustments(logit_bias={banned: -100.0}))
    alone = engine.generate([first]).generations
    for draft in [None, DraftSetting(source=scripted((*alone, *scripts[1:]), DRAFTERS[1]), depth=3)]:
        run = engine.generate([first, *requests[1:]], draft=draft).generations
        assert banned not in run[0].answer_ids
        assert [one.answer_ids for one in run[1:]] == [one.answer_ids[:NEW_TOKENS] for one in scripts[1:]]


@pytest.mark.parametrize("least", [0, 3, 6])
def test_stop_tokens_are_held_back_until_enough_tokens_have_come(decoder, requests, scripts, scripted, least):
    stop_id = scripts[0].answer_ids[2]
    engine = NativeEngine(decoder, NativeEngineConfig(), (stop_id,))
    request = replace(requests[0], adjustments=LogitAdjustments(min_new_tokens=least))
    (plain,) = engine.generate([request]).generations
    assert len(plain.answer_ids) > least or plain.finish_reason == "stop"
    assert stop_id not in plain.answer_ids[:least]
    longer = engine.generate([replace(request, adjustments=None, max_new_tokens=1)]).generations
    assert longer[0].answer_ids == plain.answer_ids[:1]
    for wrong in DRAFTERS:
        draft = DraftSetting(source=scripted((plain, scripts[0]), wrong), depth=4)
        (within,) = engine.generate([request], draft=draft).generations
        assert (within.answer_ids, within.finish_reason) == (plain.answer_ids, plain.finish_reason)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_scores_are_the_targets_own_whatever_was_drafted(decoder, engine, requests, scripted, temperature):
    sampling = SamplingConfig(temperature=temperature, top_k=5)
    rules = LogitAdjustments(presence_penalty=1.0)
    scored = [
        replace(request, log_probabilities=3, sampling=sampling, adjustments=rules) for request in requests
    ]
    plain = engine.generate(scored).generations
    for one in plain:
        ids = torch.tensor([[*one.prompt_ids, *one.answer_ids]])
        _, final_1TD = decoder.capture(ids, torch.tensor([ids.shape[1]]), ())
        expected_AV = decoder.logits(final_1TD[0, len(one.prompt_ids) - 1 : -1]).log_softmax(-1)
        for score, token, expected_V in zip(one.scores, one.answer_ids, expected_AV, strict=True):
            assert score.chosen == pytest.approx(float(expected_V[token]), abs=1e-4)
            best = expected_V.topk(3)
            assert [token for token, _ in score.likeliest] == best.indices.tolist()
            assert [value for _, value in score.likeliest] == pytest.approx(best.values.tolist(), abs=1e-4)
    for draft in settings(scripted, plain)[::3]:
        for one, without in zip(engine.generate(scored, draft=draft).generations, plain, strict=True):
            assert one.answer_ids == without.answer_ids
            assert [s.chosen for s in one.scores] == pytest.approx(
                [s.chosen for s in without.scores], abs=1e-4
            )


def test_nothing_is_scored_unless_asked_for(engine, requests):
    asked = [requests[0], replace(requests[1], log_probabilities=0)]
    without, within = engine.generate(asked).generations
    assert without.scores is None
    assert len(within.scores) == NEW_TOKENS
    assert within.scores[0].likeliest == ()


def test_a_stream_tells_every_id_once(engine, requests, scripts, scripted):
    stream = engine.open_stream(draft=DraftSetting(source=scripted(scripts, DRAFTERS[1]), depth=3))
    for request in requests:
        stream.submit(request)
    told = {request.request_id: () for request in requests}
    while stream.unfinished:
        finished = stream.advance()
        for request_id, ids in stream.new_ids().items():
            told[request_id] += ids
        for one in finished:
            told[one.request_id] += one.answer_ids[len(told[one.request_id]) :]
            assert told[one.request_id] == one.answer_ids
        assert stream.new_ids() == dict.fromkeys(stream.new_ids(), ())
    assert all(len(ids) == NEW_TOKENS for ids in told.values())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"stop_strings": ("",)}, "empty stop string"),
        ({"adjustments": LogitAdjustments(logit_bias={300: 1.0})}, "id 300"),
        ({"adjustments": LogitAdjustments(logit_bias={-1: 1.0})}, "id -1"),
        ({"draft_depth": -1}, "draft depth of -1"),
        ({"log_probabilities": 301}, "301 log probabilities"),
        ({"log_probabilities": -1}, "-1 log probabilities"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(engine, requests, fields, message):
    with pytest.raises(EngineError, match=message):
        engine.generate([replace(requests[0], **fields)])


def test_stop_strings_without_a_tokenizer_are_refused_and_leave_the_stream_usable(make_engine, requests):
    stream = make_engine().open_stream()
    with pytest.raises(EngineError, match="without a tokenizer"):
        stream.submit(replace(requests[0], stop_strings=("x",)))
    stream.submit(requests[0])
    assert stream.unfinished == 1


def test_a_request_defaults_to_plain_greedy_decoding():
    request = GenerationRequest(request_id="a", prompt_ids=(1,), max_new_tokens=1)
    assert (request.stop_strings, request.adjustments, request.log_probabilities) == ((), None, None)

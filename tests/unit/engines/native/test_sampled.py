"""Sampled answers: the target's distribution, and the same ids with any drafter, in any company."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from eagleray.drafters.base import DraftSession, DraftSource, DrawnDraft
from eagleray.engines.base import DraftSetting
from eagleray.engines.native.config import NativeEngineConfig
from eagleray.engines.native.engine import NativeEngine
from eagleray.errors import EngineError
from eagleray.speculation.config import GREEDY, SamplingConfig, TreeSetting, TypicalAcceptance
from eagleray.speculation.sampling import draw, probabilities
from eagleray.targets.decoder import TargetDecoder

PROMPT_LENGTHS = [5, 1, 9, 3, 12, 7, 2, 20]
SAMPLINGS = [
    SamplingConfig(temperature=1.0),
    GREEDY,
    SamplingConfig(temperature=0.5, top_p=0.9),
    SamplingConfig(temperature=2.0, top_k=5),
    SamplingConfig(temperature=0.8, min_p=0.1),
]


@pytest.fixture(scope="module")
def exact_engine(tiny_model):
    """The same bits in any company, so that the same ids can be asked for."""
    decoder = TargetDecoder.load(tiny_model[1], torch.float32, batch_invariant=True)

    def make(stop_token_ids=(), **settings):
        return NativeEngine(decoder, NativeEngineConfig(**settings), stop_token_ids)

    return make


@pytest.fixture(scope="module")
def requests(make_requests):
    """Every sampling beside every other, greedy ones among them."""
    return [
        replace(request, sampling=SAMPLINGS[index % len(SAMPLINGS)], seed=index)
        for index, request in enumerate(make_requests(PROMPT_LENGTHS, 20))
    ]


@pytest.fixture(scope="module")
def plain(exact_engine, requests):
    """Each answer alone."""
    engine = exact_engine()
    return tuple(engine.generate([request]).generations[0] for request in requests)


def ids_of(run):
    return [generation.answer_ids for generation in run.generations]


@pytest.mark.parametrize("max_batch_size", [1, 3, 8])
@pytest.mark.parametrize("wrong_slots", [None, frozenset(), frozenset([1]), frozenset(range(4))])
def test_neither_company_nor_a_drafter_changes_an_id(
    exact_engine, requests, plain, scripted, wrong_slots, max_batch_size
):
    draft = None if wrong_slots is None else DraftSetting(source=scripted(plain, wrong_slots), depth=4)
    run = exact_engine(max_batch_size=max_batch_size).generate(requests, draft=draft)
    assert ids_of(run) == [generation.answer_ids for generation in plain]
    if wrong_slots == frozenset():
        assert all(c.accepted == c.drafted for generation in run.generations for c in generation.cycles)
    if wrong_slots == frozenset([1]):
        *full, _ = run.generations[0].cycles
        assert {(c.accepted, c.delivered) for c in full} == {(1, 2)}


def test_greedy_rows_are_not_touched_by_sampled_neighbours(exact_engine, make_requests, requests, plain):
    greedy = exact_engine().generate(make_requests(PROMPT_LENGTHS, 20)).generations
    for request, full, generation in zip(requests, greedy, plain, strict=True):
        assert (full.answer_ids == generation.answer_ids) == request.sampling.greedy


def test_a_temperature_near_zero_is_greedy(exact_engine, make_requests):
    requests = make_requests(PROMPT_LENGTHS, 20)
    cold = [replace(request, sampling=SamplingConfig(temperature=1e-6)) for request in requests]
    assert ids_of(exact_engine().generate(cold)) == ids_of(exact_engine().generate(requests))


def test_another_seed_gives_another_answer_and_a_longer_limit_the_same_beginning(
    exact_engine, requests, plain
):
    engine = exact_engine()
    request = requests[0]
    (other,) = engine.generate([replace(request, seed=99)]).generations
    (longer,) = engine.generate([replace(request, max_new_tokens=30)]).generations
    assert other.answer_ids != plain[0].answer_ids
    assert longer.answer_ids[:20] == plain[0].answer_ids


def test_a_stop_token_inside_an_accepted_draft_ends_a_sampled_answer(exact_engine, requests, plain, scripted):
    stop_ids = tuple({generation.answer_ids[3] for generation in plain})
    engine = exact_engine(stop_ids)
    within = engine.generate(requests, draft=DraftSetting(source=scripted(plain), depth=8))
    for full, generation in zip(plain, within.generations, strict=True):
        first = next(place for place, token in enumerate(full.answer_ids) if token in stop_ids)
        assert generation.answer_ids == full.answer_ids[: first + 1]


def chi_square(counts: Counter, expected: dict, draws: int) -> tuple[float, int]:
    """Statistic and degrees of freedom; outcomes expected fewer than eight times are pooled."""
    common = [outcome for outcome, share in expected.items() if share * draws >= 8]
    observed = [counts[outcome] for outcome in common]
    shares = [expected[outcome] for outcome in common]
    observed.append(draws - sum(observed))
    shares.append(1 - sum(shares))
    statistic = sum((n - draws * p) ** 2 / (draws * p) for n, p in zip(observed, shares, strict=True))
    return statistic, len(observed) - 1


class Constant(DraftSource, DraftSession):
    """Always proposes the same tokens."""

    tapped_layers = ()
    max_depth = None

    def __init__(self, ids):
        self.ids = ids

    def open_session(self, max_rows, max_length):
        return self

    def draft(self, num_rows, depth):
        return torch.tensor([self.ids[:depth]] * num_rows)

    def observe(self, committed): ...

    def reset(self, row): ...

    def move(self, source, destination): ...


class Drawing(Constant):
    """Draws every slot from the same few tokens, some of which the target hardly says."""

    can_draw = True

    def __init__(self, shares):
        super().__init__(list(shares))
        self.shares_V = torch.zeros(300, dtype=torch.float64)
        self.shares_V[list(shares)] = torch.tensor(list(shares.values()), dtype=torch.float64)

    def draw(self, num_rows, depth, samplings, uniforms_BK):
        shares_BKV = self.shares_V.expand(num_rows, depth, -1)
        return DrawnDraft(draw(shares_BKV, uniforms_BK), shares_BKV)


def likely_tokens(ids):
    """A draft that is the greedy continuation: right often enough to be accepted and refused many times."""
    return DraftSetting(source=Constant(ids), depth=2)


def drawn_tokens(ids):
    """A draft drawn from the same tokens and one that the target never says, in shares of its own."""
    shares = {ids[0]: 0.5, ids[1]: 0.3, (ids[0] + 1) % 300: 0.2}
    return DraftSetting(source=Drawing(shares), depth=2, drawn=True)


@pytest.mark.parametrize("drafting", [likely_tokens, drawn_tokens])
def test_drafted_answers_have_the_targets_distribution(make_engine, decoder, make_requests, drafting):
    """The first two tokens after the one of prefill, of 1500 answers, against their exact joint
    distribution."""
    sampling, draws = SamplingConfig(temperature=0.7, top_k=6), 1500
    (prompt,) = make_requests([6], 4)
    engine = make_engine(max_batch_size=64)
    first_id, *likeliest = engine.generate([prompt]).generations[0].answer_ids
    requests = [replace(prompt, request_id=str(seed), sampling=sampling, seed=seed) for seed in range(draws)]
    run = engine.generate(requests, draft=drafting(likeliest))
    answers = [one for one in run.generations if one.answer_ids[0] == first_id]
    counts = Counter(one.answer_ids[1:3] for one in answers)

    def next_tokens(answer_ids):
        ids = (*prompt.prompt_ids, *answer_ids)
        _, final_BTD = decoder.capture(torch.tensor([ids]), torch.tensor([len(ids)]), ())
        shares_V = probabilities(decoder.logits(final_BTD[:, -1:]), [sampling])[0, 0]
        return {int(token): shares_V[token].item() for token in shares_V.nonzero()[:, 0]}

    expected = {
        (one, two): share * next_share
        for one, share in next_tokens((first_id,)).items()
        for two, next_share in next_tokens((first_id, one)).items()
    }
    statistic, freedom = chi_square(counts, expected, len(answers))
    # Wilson and Hilferty: the 99.9 % point of the chi-square distribution.
    limit = freedom * (1 - 2 / (9 * freedom) + 3.09 * (2 / (9 * freedom)) ** 0.5) ** 3
    assert freedom > 8
    assert statistic < limit
    accepted = Counter(one.cycles[0].accepted for one in answers)
    assert min(accepted[0], accepted[1] + accepted[2]) > 0.1 * len(answers)


def test_greedy_requests_beside_drawn_drafts_are_as_without(exact_engine, requests, plain):
    draft = DraftSetting(source=Drawing({3: 0.4, 250: 0.6}), depth=3, drawn=True)
    run = exact_engine(max_batch_size=8).generate(requests, draft=draft)
    again = exact_engine(max_batch_size=3).generate(requests, draft=draft)
    assert ids_of(run) == ids_of(again)
    for request, one, expected in zip(requests, run.generations, plain, strict=True):
        assert len(one.answer_ids) == len(expected.answer_ids)
        if request.sampling.greedy:
            assert one.answer_ids == expected.answer_ids


def test_drafts_that_cannot_be_drawn_are_refused(make_engine):
    with pytest.raises(EngineError, match="no distribution"):
        make_engine().open_stream(draft=DraftSetting(source=Constant([1]), depth=1, drawn=True))
    tree = DraftSetting(source=Drawing({1: 1.0}), depth=1, drawn=True, tree=TreeSetting())
    with pytest.raises(EngineError, match="trees"):
        make_engine().open_stream(draft=tree)


def test_typical_acceptance_is_labelled_and_leaves_greedy_answers_alone(exact_engine, requests, plain):
    """Sampled ones take whatever the target finds plausible, and say that they are lossy."""
    draft = DraftSetting(source=Constant([3, 250, 7]), depth=3, typical=TypicalAcceptance(epsilon=1e-9))
    run = exact_engine(max_batch_size=4).generate(requests, draft=draft)
    for request, one, expected in zip(requests, run.generations, plain, strict=True):
        assert one.lossy == (not request.sampling.greedy)
        if request.sampling.greedy:
            assert one.answer_ids == expected.answer_ids
    # Temperature 1 and no filter: everything is plausible, so the answer is the drafter's.
    assert run.generations[0].answer_ids[1:4] == (3, 250, 7)
    assert not any(one.lossy for one in exact_engine().generate(requests).generations)


def test_typical_acceptance_is_of_chains_that_are_not_drawn(make_engine):
    for other in ({"drawn": True}, {"tree": TreeSetting()}):
        draft = DraftSetting(source=Drawing({1: 1.0}), depth=1, typical=TypicalAcceptance(), **other)
        with pytest.raises(EngineError, match="Typical acceptance"):
            make_engine().open_stream(draft=draft)

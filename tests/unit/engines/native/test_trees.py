"""Draft trees change no id, whatever their shape, and deliver what the path through them allows."""

from dataclasses import replace
from random import Random

import pytest
import torch

from eagleray.drafters.base import DraftSession, DraftSource
from eagleray.engines.base import DraftSetting
from eagleray.engines.native.config import NativeEngineConfig
from eagleray.engines.native.engine import NativeEngine
from eagleray.speculation.config import SamplingConfig, TreeSetting
from eagleray.speculation.trees import TokenTree
from eagleray.targets.attention import CompiledStepAttention, TreeAttention
from eagleray.targets.decoder import TargetDecoder
from eagleray.targets.kernels import step

VOCAB_SIZE = 300
CONTEXT_TOKENS = 64
PROMPT_LENGTHS = [5, 1, 9, 3, 12, 7, 2, 20]
NEW_TOKENS = 24
TREE = TreeSetting(top_k=3, nodes=12)


class Branching(DraftSession):
    """Hides how a script goes on, up to some level, among wrong tokens in trees of random shape."""

    def __init__(self, inner, right_levels):
        self.inner = inner
        self.right_levels = right_levels
        self.chance = Random(5)

    def observe(self, committed):
        self.inner.observe(committed)

    def draft(self, num_rows, depth):
        return self.inner.draft(num_rows, depth)

    def draft_tree(self, num_rows, depth, tree):
        trees = [self.grow(ids, tree) for ids in self.draft(num_rows, depth).tolist()]
        padded = [[*nodes, *[(-1, -1)] * (tree.nodes - len(nodes))] for nodes in trees]
        return TokenTree(*torch.tensor(padded).unbind(-1))

    def grow(self, ids, tree):
        """Level by level: the node that goes on, anywhere among wrong children of the level above."""
        nodes, right, above = [], -1, [-1]
        spare = tree.nodes - len(ids)
        for level, token in enumerate(ids):
            wrong = [
                (self.other_than(token), self.chance.choice(above))
                for _ in range(self.chance.randint(0, spare))
            ]
            spare -= len(wrong)
            going_on = (token if level < self.right_levels else self.other_than(token), right)
            children = self.chance.sample([*wrong, going_on], len(wrong) + 1)
            above = range(len(nodes), len(nodes) + len(children))
            nodes += children
            right = nodes.index(going_on, above[0])
        return nodes

    def other_than(self, token):
        return (token + self.chance.randrange(1, VOCAB_SIZE)) % VOCAB_SIZE

    def reset(self, row):
        self.inner.reset(row)

    def move(self, source, destination):
        self.inner.move(source, destination)


class BranchingSource(DraftSource):
    tapped_layers = (1, 2)
    max_depth = None

    def __init__(self, inner, right_levels=99):
        self.inner = inner
        self.right_levels = right_levels

    def open_session(self, max_rows, max_length):
        return Branching(self.inner.open_session(max_rows, max_length), self.right_levels)


@pytest.fixture(scope="module")
def requests(make_requests):
    """Greedy and sampled ones."""
    return [
        replace(request, seed=index, sampling=SamplingConfig(temperature=0.0 if index % 2 else 1.0))
        for index, request in enumerate(make_requests(PROMPT_LENGTHS, NEW_TOKENS))
    ]


@pytest.fixture(scope="module")
def exact_engine(tiny_model):
    decoder = TargetDecoder.load(tiny_model[1], torch.float32, batch_invariant=True)

    def make(stop_token_ids=(), **settings):
        return NativeEngine(decoder, NativeEngineConfig(**settings), stop_token_ids)

    return make


@pytest.fixture(scope="module")
def scripts(exact_engine, requests):
    """Plain answers that go on past the end of any answer in these tests."""
    longer = [replace(request, max_new_tokens=40) for request in requests]
    return exact_engine().generate(longer).generations


@pytest.fixture(scope="module")
def plain(exact_engine, requests):
    return exact_engine(max_batch_size=1).generate(requests, capture_layers=(0, 2)).generations


def ids_of(run):
    return [generation.answer_ids for generation in run.generations]


def setting(scripted, scripts, depth, right_levels=99):
    return DraftSetting(source=BranchingSource(scripted(scripts), right_levels), depth=depth, tree=TREE)


@pytest.mark.parametrize("batch_size", [1, 3, 8])
@pytest.mark.parametrize("depth", [1, 2, 4, 8])
@pytest.mark.parametrize("right_levels", [0, 1, 2, 99])
def test_a_tree_changes_no_id(
    make_engine, requests, plain, scripts, scripted, right_levels, depth, batch_size
):
    draft = setting(scripted, scripts, depth, right_levels)
    run = make_engine(max_batch_size=batch_size).generate(requests, draft=draft)
    assert ids_of(run) == [generation.answer_ids for generation in plain]
    for generation in run.generations:
        assert 1 + sum(cycle.delivered for cycle in generation.cycles) == NEW_TOKENS
        *full, _ = generation.cycles
        expected = min(depth, right_levels)
        assert {cycle.accepted for cycle in full[:-depth]} <= {expected}


@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_batch_invariant_decoder_computes_the_same_bits_with_trees(
    exact_engine, requests, plain, scripts, scripted, batch_size
):
    """Ids, final states and features, of greedy and of sampled answers."""
    engine = exact_engine(max_batch_size=batch_size)
    for right_levels in (1, 2, 99):
        draft = setting(scripted, scripts, 4, right_levels)
        run = engine.generate(requests, draft=draft, capture_layers=(0, 2))
        for alone, generation in zip(plain, run.generations, strict=True):
            assert generation.answer_ids == alone.answer_ids
            assert torch.equal(generation.captured.final_TD, alone.captured.final_TD)
            assert torch.equal(generation.captured.features_TLD, alone.captured.features_TLD)


def test_a_drafter_that_does_not_branch_gives_its_chain(make_engine, requests, scripts, scripted):
    engine = make_engine(max_batch_size=3)
    chain = DraftSetting(source=scripted(scripts, frozenset([2])), depth=4)
    as_tree = replace(chain, tree=TREE)
    chains, trees = (engine.generate(requests, draft=draft).generations for draft in (chain, as_tree))
    assert trees == chains
    short = replace(chain, tree=TreeSetting(nodes=1))
    for generation in engine.generate(requests, draft=short).generations:
        assert {(c.drafted, c.accepted) for c in generation.cycles[:-1]} == {(1, 1)}


@pytest.mark.parametrize("place", [2, 3, 4])
@pytest.mark.parametrize("batch_size", [1, 4])
def test_a_stop_token_inside_an_accepted_path_ends_the_answer(
    make_engine, requests, plain, scripts, scripted, place, batch_size
):
    stop_ids = tuple({generation.answer_ids[place] for generation in plain})
    engine = make_engine(stop_ids, max_batch_size=batch_size)
    run = engine.generate(requests, draft=setting(scripted, scripts, 6), capture_layers=(1,))
    for full, generation in zip(plain, run.generations, strict=True):
        first = next(i for i, token in enumerate(full.answer_ids) if token in stop_ids)
        assert generation.answer_ids == full.answer_ids[: first + 1]
        assert generation.finish_reason == "stop"
        assert sum(cycle.delivered for cycle in generation.cycles) == first
        tokens = len(generation.prompt_ids) + len(generation.answer_ids)
        assert generation.captured.final_TD.shape == (tokens - 1, 64)


@pytest.mark.parametrize("max_new_tokens", [1, 2, 5, 9])
def test_no_more_than_the_asked_tokens_are_emitted(
    make_engine, requests, plain, scripts, scripted, max_new_tokens
):
    limited = [
        replace(request, max_new_tokens=max_new_tokens + index % 3) for index, request in enumerate(requests)
    ]
    run = make_engine(max_batch_size=3).generate(limited, draft=setting(scripted, scripts, 8))
    assert ids_of(run) == [
        generation.answer_ids[: max_new_tokens + index % 3] for index, generation in enumerate(plain)
    ]
    for generation in run.generations:
        assert generation.finish_reason == "length"
        assert all(cycle.accepted <= cycle.drafted <= 8 for cycle in generation.cycles)


def test_the_context_window_bounds_prompt_and_answer(make_engine, make_requests, scripted):
    requests = make_requests([30, 50, 58, 61, 62, 63], 100)
    engine = make_engine(max_batch_size=3)
    without = engine.generate(requests)
    within = engine.generate(requests, draft=setting(scripted, without.generations, 8))
    assert ids_of(within) == ids_of(without)
    for request, generation in zip(requests, within.generations, strict=True):
        assert len(request.prompt_ids) + len(generation.answer_ids) == CONTEXT_TOKENS


def test_captured_features_are_those_of_the_finished_sequence(
    make_engine, decoder, requests, scripts, scripted
):
    run = make_engine(max_batch_size=3).generate(
        requests, draft=setting(scripted, scripts, 4, 2), capture_layers=(0, 3)
    )
    for generation in run.generations:
        ids = generation.prompt_ids + generation.answer_ids[:-1]
        features_BTLD, final_BTD = decoder.capture(torch.tensor([ids]), torch.tensor([len(ids)]), (0, 3))
        torch.testing.assert_close(generation.captured.features_TLD, features_BTLD[0], atol=1e-4, rtol=0)
        torch.testing.assert_close(generation.captured.final_TD, final_BTD[0], atol=1e-4, rtol=0)


@pytest.mark.parametrize(("compiled", "expected"), [(True, CompiledStepAttention), (False, TreeAttention)])
def test_the_attention_that_reads_a_row_once_is_the_one_that_runs(
    make_engine, requests, scripts, scripted, monkeypatch, compiled, expected
):
    seen = []
    build = expected.__init__

    def spy(self, *arguments):
        seen.append(type(self))
        build(self, *arguments)

    monkeypatch.setattr(expected, "__init__", spy)
    if not compiled:
        monkeypatch.setattr(step, "fits", lambda *_: False)
    make_engine().generate(requests[:2], draft=setting(scripted, scripts, 4))
    assert set(seen) == {expected}

"""A depth that is chosen anew every cycle changes the speed of an answer and nothing else."""

from dataclasses import replace

import pytest
import torch

from eagleray.drafters.base import Committed, DraftSession
from eagleray.engines.base import DraftSetting
from eagleray.engines.native import observing
from eagleray.engines.native.observing import Observer
from eagleray.speculation.config import SamplingConfig, TreeSetting
from eagleray.speculation.depth import DepthChooser

PROMPT_LENGTHS = [5, 1, 9, 3, 12]
NEW_TOKENS = 40


@pytest.fixture(scope="module")
def requests(make_requests):
    """Greedy and sampled ones."""
    return [
        replace(request, seed=index, sampling=SamplingConfig(temperature=0.0 if index % 2 else 1.0))
        for index, request in enumerate(make_requests(PROMPT_LENGTHS, NEW_TOKENS))
    ]


@pytest.fixture(scope="module")
def plain(make_engine, requests):
    return make_engine().generate(requests).generations


class Scheduled(DepthChooser):
    """Depths by a fixed pattern instead of by time."""

    def __init__(self, pattern):
        super().__init__(8)
        self.pattern = pattern
        self.seen = []

    def next_depth(self, rows):
        return self.pattern[len(self.seen) % len(self.pattern)]

    def record(self, rows, depth, cycle_s, cycles, *, told_s):
        self.seen.append(depth)
        super().record(rows, depth, cycle_s, cycles, told_s=told_s)


@pytest.mark.parametrize("pattern", [[0], [0, 0, 3], [4, 0, 1, 0, 0, 0, 0, 2], [0] * 35 + [5]])
@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("wrong", [frozenset(), frozenset([1])])
@pytest.mark.parametrize("tree", [None, TreeSetting(top_k=2, nodes=4)])
def test_any_pattern_of_depths_gives_the_plain_answers(
    make_engine, requests, plain, scripted, monkeypatch, pattern, batch_size, wrong, tree
):
    """The scripted drafter fails loudly if it was told too little, twice, or of the wrong row."""
    chooser = Scheduled(pattern)
    engine = make_engine(max_batch_size=batch_size)
    monkeypatch.setattr(engine, "_chooser", lambda draft: chooser)
    draft = DraftSetting(source=scripted(plain, wrong), depth=8, adaptive=True, tree=tree)
    run = engine.generate(requests, draft=draft)
    assert [one.answer_ids for one in run.generations] == [one.answer_ids for one in plain]
    assert set(chooser.seen) == set(pattern) or len(chooser.seen) < len(pattern)


def test_it_is_chosen_by_what_was_measured_and_says_so(make_engine, make_requests, plain, scripted):
    engine = make_engine(max_batch_size=4)
    requests = make_requests(PROMPT_LENGTHS, NEW_TOKENS)
    answers = engine.generate(requests).generations
    draft = DraftSetting(source=scripted(answers), depth=6, adaptive=True)
    stream = engine.open_stream(draft=draft)
    assert stream.depth_choice is None
    for request in requests[:1]:
        stream.submit(request)
    choices = []
    while stream.unfinished:
        (*_, last) = (None, *stream.advance())
        choices.append(stream.depth_choice)
    assert last.answer_ids == answers[0].answer_ids
    told = [choice for choice in choices if choice is not None]
    assert all(choice.rows == 1 and 0 <= choice.depth <= 6 for choice in told)
    again = engine.open_stream(draft=draft)
    again.submit(requests[1])
    again.advance()
    assert again.depth_choice is not None, "what was measured was forgotten with the stream"


def test_a_fixed_depth_has_no_choice(make_engine, requests, plain, scripted):
    stream = make_engine().open_stream(draft=DraftSetting(source=scripted(plain), depth=2))
    stream.submit(requests[0])
    stream.advance()
    assert stream.depth_choice is None


class Recording(DraftSession):
    """Keeps what it was told, row by row."""

    def __init__(self):
        self.calls = 0
        self.told = {}

    def observe(self, committed):
        self.calls += 1
        for row, ids, features, count in zip(
            committed.rows_B.tolist(),
            committed.next_ids_BQ.tolist(),
            committed.features_BQLD,
            committed.counts_B.tolist(),
            strict=True,
        ):
            assert features[:count, 0, 0].tolist() == ids[:count]
            self.told.setdefault(row, []).extend(ids[:count])

    def draft(self, num_rows, depth):
        raise NotImplementedError

    def reset(self, row):
        self.told.pop(row, None)

    def move(self, source, destination):
        self.told[destination] = self.told.pop(source, [])


def committed(rows: list[int], token: int) -> Committed:
    ids = torch.full((len(rows), 1), token)
    return Committed(
        rows_B=torch.tensor(rows),
        features_BQLD=ids[..., None, None].float(),
        final_BQD=ids[..., None].float(),
        next_ids_BQ=ids,
        counts_B=torch.ones(len(rows), dtype=torch.long),
    )


def test_what_is_held_is_told_in_order_and_in_few_calls():
    session = Recording()
    observer = Observer(session)
    for token in range(5):
        observer.hold(committed([0, 1, 2], token))
    observer.hold(committed([0, 2], 5))
    assert session.calls == 0
    observer.tell(committed([0, 2], 6))
    assert (session.calls, session.told[1]) == (2, [0, 1, 2, 3, 4])
    assert session.told[0] == session.told[2] == list(range(7))
    observer.settle()
    assert session.calls == 2


def test_of_rows_that_end_untold_the_drafter_never_hears_and_the_others_keep_their_place():
    session = Recording()
    observer = Observer(session)
    observer.hold(committed([0], 7))
    for token in range(3):
        observer.hold(committed([1, 2], token))
    # Row 0 ends, and the last one moves there.
    observer.move(2, 0)
    observer.reset(2)
    observer.hold(committed([0], 3))
    observer.settle()
    assert session.told == {0: [0, 1, 2, 3], 1: [0, 1, 2]}


def test_a_long_prompt_is_not_told_padded_to_rows_of_one_token():
    session = Recording()
    observer = Observer(session)
    for token in range(9):
        observer.hold(committed([3], token))
    observer.hold(committed([0, 1], 0))
    observer.settle()
    assert session.calls == 2
    assert session.told == {0: [0], 1: [0], 3: list(range(9))}


def test_no_more_is_held_than_memory_was_meant_for(monkeypatch):
    session = Recording()
    observer = Observer(session)
    monkeypatch.setattr(observing, "MOST_HELD", 8)
    for token in range(9):
        observer.hold(committed([0, 1], token))
    assert session.calls == 2
    assert session.told[0] == session.told[1] == list(range(8))

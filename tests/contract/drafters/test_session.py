"""What the session of any drafter promises."""

from collections.abc import Callable

import pytest
import torch

from eagleray.drafters.base import TrainableDrafter, TrainingBatch
from eagleray.drafters.config import DrafterConfig
from eagleray.engines.base import DraftSetting, GenerationRequest
from eagleray.engines.native.config import NativeEngineConfig
from eagleray.engines.native.engine import NativeEngine
from eagleray.speculation.config import GREEDY, SamplingConfig, TreeSetting
from eagleray.speculation.trees import TokenTree
from eagleray.targets.decoder import TargetDecoder

BatchFor = Callable[..., TrainingBatch]
Observe = Callable[..., None]
Depth = Callable[[TrainableDrafter], int]


def test_a_draft_is_target_ids_of_the_asked_rows_and_depth(
    config: DrafterConfig,
    any_target: TargetDecoder,
    make_drafter: Callable[..., TrainableDrafter],
    sequence_for: BatchFor,
    observe: Observe,
    depth_of: Depth,
) -> None:
    drafter = make_drafter(config, any_target)
    batch = sequence_for(any_target, drafter, (3, 16), (3, 16))
    session = drafter.open_session(2, 16)
    observe(session, batch, {0: (0, 0, 9), 1: (1, 0, 3)})
    for rows, depth in [(1, 1), (2, 1), (2, depth_of(drafter))]:
        drafted = session.draft(rows, depth)
        assert drafted.shape == (rows, depth)
        assert drafted.dtype == torch.int64
        assert drafted.min() >= 0
        assert drafted.max() < any_target.geometry.vocab_size


def test_the_deepest_draft_fits_at_the_end_of_the_longest_sequence(
    drafter: TrainableDrafter, batch_for: BatchFor, observe: Observe
) -> None:
    batch = batch_for(drafter, (3, 16))
    session = drafter.open_session(1, 15)
    observe(session, batch, {0: (0, 0, 15)})
    depth = drafter.max_depth or 5
    assert session.draft(1, depth).shape == (1, depth)


def test_observing_in_pieces_with_drafts_between_equals_observing_at_once(
    drafter: TrainableDrafter, batch_for: BatchFor, observe: Observe, depth_of: Depth
) -> None:
    batch, depth = batch_for(drafter, (3, 16)), depth_of(drafter)
    whole, pieces = drafter.open_session(1, 16), drafter.open_session(1, 16)
    observe(whole, batch, {0: (0, 0, 11)})
    for start, end in [(0, 4), (4, 5), (5, 8), (8, 11)]:
        observe(pieces, batch, {0: (0, start, end)}, padding=start)
        pieces.draft(1, depth)
    assert torch.equal(whole.draft(1, depth), pieces.draft(1, depth))


def test_ragged_rows_draft_as_they_would_alone(
    drafter: TrainableDrafter, batch_for: BatchFor, observe: Observe, depth_of: Depth
) -> None:
    batch, depth = batch_for(drafter, (3, 16), (3, 16), (3, 16)), depth_of(drafter)
    ragged = drafter.open_session(3, 16)
    observe(ragged, batch, {0: (0, 0, 3), 1: (1, 0, 6), 2: (2, 0, 2)}, padding=2)
    observe(ragged, batch, {2: (2, 2, 2), 0: (0, 3, 5), 1: (1, 6, 9)})
    drafted = ragged.draft(3, depth)
    for row, end in enumerate([5, 9, 2]):
        alone = drafter.open_session(1, 16)
        observe(alone, batch, {0: (row, 0, end)})
        assert torch.equal(drafted[row], alone.draft(1, depth)[0])
    assert torch.equal(ragged.draft(2, depth), drafted[:2])


def test_what_was_seen_long_ago_and_last_both_count(
    drafter: TrainableDrafter, batch_for: BatchFor, observe: Observe, depth_of: Depth
) -> None:
    """Two sequences that differ draft differently; otherwise the tests above would prove nothing."""
    batch, depth = batch_for(drafter, *[(3, 16)] * 8), depth_of(drafter)
    session = drafter.open_session(8, 16)
    observe(session, batch, {row: (row, 0, 9) for row in range(8)})
    assert len(session.draft(8, depth).unique(dim=0)) > 4


def test_a_tree_of_width_1_is_the_chain(
    drafter: TrainableDrafter, batch_for: BatchFor, observe: Observe, depth_of: Depth
) -> None:
    batch, depth = batch_for(drafter, (3, 16), (3, 16)), depth_of(drafter)
    session = drafter.open_session(2, 16)
    observe(session, batch, {0: (0, 0, 9), 1: (1, 0, 3)})
    chain = TokenTree.chain(session.draft(2, depth))
    tree = session.draft_tree(2, depth, TreeSetting(top_k=1))
    assert torch.equal(tree.ids_BN, chain.ids_BN)
    assert torch.equal(tree.parents_BN, chain.parents_BN)


def test_a_drawn_draft_is_drawn_from_what_it_says(
    drafter: TrainableDrafter, batch_for: BatchFor, observe: Observe, depth_of: Depth
) -> None:
    """Cold, it is the greedy draft. Warm, 400 rows with the same past draw their first token as they say.
    A drafter that says it cannot draw does not."""
    rows, depth = 400, depth_of(drafter)
    session = drafter.open_session(rows, 16)
    batch = batch_for(drafter, (3, 16))
    observe(session, batch, dict.fromkeys(range(rows), (0, 0, 9)))
    uniforms_RK = torch.rand(rows, depth, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    if not drafter.can_draw:
        with pytest.raises(NotImplementedError):
            session.draw(2, depth, [GREEDY] * 2, uniforms_RK[:2])
        return
    cold = session.draw(2, depth, [GREEDY] * 2, uniforms_RK[:2])
    assert torch.equal(cold.ids_BK, session.draft(2, depth))
    assert (cold.probabilities_BKV.gather(2, cold.ids_BK[..., None]) == 1.0).all()
    warm = session.draw(rows, depth, [SamplingConfig(temperature=1.0)] * rows, uniforms_RK)
    torch.testing.assert_close(warm.probabilities_BKV.sum(-1), torch.ones_like(uniforms_RK))
    assert (warm.probabilities_BKV.gather(2, warm.ids_BK[..., None]) > 0).all()
    shares_V = warm.probabilities_BKV[0, 0]
    seen_V = torch.bincount(warm.ids_BK[:, 0], minlength=len(shares_V)) / rows
    # Four standard deviations of the widest share.
    assert (seen_V - shares_V).abs().max() < 4 * 0.5 / rows**0.5


def test_answers_with_chains_and_with_trees_are_the_plain_ones(
    drafter: TrainableDrafter, target: TargetDecoder, depth_of: Depth
) -> None:
    engine = NativeEngine(target, NativeEngineConfig(max_batch_size=2))
    requests = [
        GenerationRequest(request_id=str(size), prompt_ids=tuple(range(3, 3 + size)), max_new_tokens=12)
        for size in (2, 7, 4)
    ]
    plain = [generation.answer_ids for generation in engine.generate(requests).generations]
    for tree in (None, TreeSetting(top_k=3, nodes=10)):
        draft = DraftSetting(source=drafter, depth=depth_of(drafter), tree=tree)
        run = engine.generate(requests, draft=draft)
        assert [generation.answer_ids for generation in run.generations] == plain


def test_a_moved_row_goes_on_and_a_reset_row_starts_over(
    drafter: TrainableDrafter, batch_for: BatchFor, observe: Observe, depth_of: Depth
) -> None:
    batch, depth = batch_for(drafter, (3, 16), (3, 16)), depth_of(drafter)
    session = drafter.open_session(2, 16)
    observe(session, batch, {0: (0, 0, 9), 1: (1, 0, 4)})
    expected = session.draft(2, depth)[1]
    session.move(1, 0)
    session.reset(1)
    assert torch.equal(session.draft(1, depth)[0], expected)
    observe(session, batch, {0: (1, 4, 7), 1: (0, 0, 5)})
    going_on, fresh = drafter.open_session(1, 16), drafter.open_session(1, 16)
    observe(going_on, batch, {0: (1, 0, 7)})
    observe(fresh, batch, {0: (0, 0, 5)})
    drafted = session.draft(2, depth)
    assert torch.equal(drafted[0], going_on.draft(1, depth)[0])
    assert torch.equal(drafted[1], fresh.draft(1, depth)[0])


def test_a_row_that_was_never_observed_may_move(
    drafter: TrainableDrafter, batch_for: BatchFor, observe: Observe, depth_of: Depth
) -> None:
    batch, depth = batch_for(drafter, (3, 16), (3, 16)), depth_of(drafter)
    session, alone = drafter.open_session(9, 16), drafter.open_session(1, 16)
    session.move(8, 0)
    observe(session, batch, {0: (0, 0, 9)})
    session.move(8, 1)
    observe(session, batch, {1: (1, 0, 4)})
    observe(alone, batch, {0: (1, 0, 4)})
    assert torch.equal(session.draft(2, depth)[1], alone.draft(1, depth)[0])

"""Drafting live is what training rehearsed."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from eagleray.drafters.base import Committed, TrainingBatch
from eagleray.drafters.blocks.draft_vocab import DraftVocabulary
from eagleray.drafters.eagle3.config import Eagle3Config
from eagleray.drafters.eagle3.model import Eagle3Drafter
from eagleray.drafters.eagle3.step import QueryRows, unroll
from eagleray.targets.heads import FrozenHeads

MakeBatch = Callable[..., TrainingBatch]
Observe = Callable[..., None]


@pytest.fixture(params=[True, False], ids=["norm before residual", "norm after residual"])
def drafter(request: pytest.FixtureRequest, heads: FrozenHeads, counts: Tensor) -> Eagle3Drafter:
    torch.manual_seed(3)
    config = Eagle3Config(draft_vocab_size=24, ttt_steps=4, norm_before_residual=request.param)
    return Eagle3Drafter(config, heads, DraftVocabulary.from_counts(counts, 24))


@pytest.mark.parametrize("newest", [2, 5, 8])
def test_a_chain_is_the_unrolled_training_step_at_its_own_tokens(
    drafter: Eagle3Drafter, make_batch: MakeBatch, observe: Observe, newest: int
) -> None:
    batch = make_batch((3, 16))
    session = drafter.open_session(1, 16)
    observe(session, batch, 0, 0, 0, newest + 1)
    drafted = session.draft(1, 4)[0]
    ids_BT = batch.ids_BT.clone()
    ids_BT[0, newest + 2 : newest + 6] = drafted
    rehearsed = replace(batch, ids_BT=ids_BT)
    rows = QueryRows.select(rehearsed, 4)
    index = rows.position_N.tolist().index(newest)
    with torch.no_grad():
        choices = [
            int(drafter.to_target_ids(logits_NU[index].argmax()))
            for logits_NU in unroll(drafter, rehearsed, rows)
        ]
    assert drafted.tolist() == choices


def test_ragged_rows_draft_as_they_would_alone(
    drafter: Eagle3Drafter, make_batch: MakeBatch, observe: Observe
) -> None:
    batch = make_batch((3, 16), (3, 16), (3, 16))
    ragged = drafter.open_session(3, 16)
    ends = [5, 9, 2]
    for start, counts in [([0, 0, 0], [3, 6, 2]), ([3, 6, 2], [2, 3, 0])]:
        most = max(counts)
        features = torch.stack([batch.features_BTLD[r, s : s + most] for r, s in enumerate(start)])
        following = torch.stack([batch.ids_BT[r, s + 1 : s + 1 + most] for r, s in enumerate(start)])
        ragged.observe(
            Committed(
                rows_B=torch.arange(3),
                features_BQLD=features,
                final_BQD=features[:, :, 0],
                next_ids_BQ=following,
                counts_B=torch.tensor(counts),
            )
        )
    drafted = ragged.draft(3, 4)
    for row, end in enumerate(ends):
        alone = drafter.open_session(1, 16)
        observe(alone, batch, row, 0, 0, end)
        assert torch.equal(drafted[row], alone.draft(1, 4)[0])
    assert torch.equal(ragged.draft(2, 4), drafted[:2])


def test_a_moved_row_goes_on_and_a_reset_row_starts_over(
    drafter: Eagle3Drafter, make_batch: MakeBatch, observe: Observe
) -> None:
    batch = make_batch((3, 16), (3, 16))
    session = drafter.open_session(2, 16)
    observe(session, batch, 0, 0, 0, 9)
    observe(session, batch, 1, 1, 0, 4)
    expected = session.draft(2, 3)[1]
    session.move(1, 0)
    assert torch.equal(session.draft(1, 3)[0], expected)
    session.reset(0)
    observe(session, batch, 0, 0, 0, 6)
    fresh = drafter.open_session(1, 16)
    observe(fresh, batch, 0, 0, 0, 6)
    assert torch.equal(session.draft(1, 3), fresh.draft(1, 3))


def test_the_residual_stream_starts_at_the_normed_features_only_when_asked(drafter: Eagle3Drafter) -> None:
    hidden_ND = torch.full((1, 16), 10.0)
    residual_ND, _ = drafter.midlayer.enter(torch.zeros(1, 16), hidden_ND)
    expected = 1.0 if drafter.config.norm_before_residual else 10.0
    torch.testing.assert_close(residual_ND, torch.full((1, 16), expected))


def test_drafts_are_target_ids_of_the_draft_vocabulary(
    drafter: Eagle3Drafter, make_batch: MakeBatch, observe: Observe
) -> None:
    batch = make_batch((3, 16))
    session = drafter.open_session(1, 16)
    observe(session, batch, 0, 0, 0, 9)
    assert drafter.is_draftable(session.draft(1, 8)).all()

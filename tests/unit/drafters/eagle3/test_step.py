"""What an EAGLE-3 training step supervises, sees and changes."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from eagleray.drafters.base import TrainingBatch
from eagleray.drafters.blocks.chain.unroll import unroll
from eagleray.drafters.blocks.draft_vocab import DraftVocabulary
from eagleray.drafters.blocks.query_rows import QueryRows
from eagleray.drafters.eagle3.config import Eagle3Config
from eagleray.drafters.eagle3.model import Eagle3Drafter
from eagleray.targets.heads import FrozenHeads

MakeBatch = Callable[..., TrainingBatch]
STEPS = 3


@pytest.fixture
def drafter(heads: FrozenHeads, counts: Tensor) -> Eagle3Drafter:
    torch.manual_seed(3)
    config = Eagle3Config(draft_vocab_size=24, ttt_steps=STEPS)
    return Eagle3Drafter(config, heads, DraftVocabulary.from_counts(counts, 24))


def logits_at(drafter: Eagle3Drafter, batch: TrainingBatch) -> dict[tuple[int, int, int], Tensor]:
    """Logits by (batch row, row p, draft step)."""
    rows = QueryRows.select(batch, STEPS)
    found = {}
    with torch.no_grad():
        for step, (logits_NU, _) in enumerate(unroll(drafter, batch, rows, rows.supervised_NK.shape[1])):
            for n, (row, position) in enumerate(zip(rows.packing.batch_N, rows.position_N, strict=True)):
                found[int(row), int(position), step] = logits_NU[n]
    return found


def test_every_answer_token_but_no_other_is_a_label(make_batch: MakeBatch) -> None:
    batch = make_batch((4, 7), padding=1)  # 8 positions, answer at 4, 5, 6
    rows = QueryRows.select(batch, 1)
    assert (rows.position_N + 2).tolist() == [4, 5, 6]
    assert rows.supervised_NK.all()


def test_at_draft_step_k_row_p_is_judged_by_the_token_at_p_plus_2_plus_k(make_batch: MakeBatch) -> None:
    rows = QueryRows.select(make_batch((4, 7), padding=1), STEPS)
    labels = [
        sorted((rows.position_N[rows.supervised_NK[:, step]] + 2 + step).tolist()) for step in range(STEPS)
    ]
    assert labels == [[4, 5, 6], [4, 5, 6], [4, 5, 6]]
    assert rows.position_N.tolist() == [0, 1, 2, 3, 4]


def test_a_row_sees_its_own_features_and_the_next_token_but_nothing_later(
    drafter: Eagle3Drafter, make_batch: MakeBatch
) -> None:
    batch = make_batch((3, 12))
    before = logits_at(drafter, batch)
    changed_ids, changed_features = batch.ids_BT.clone(), batch.features_BTLD.clone()
    changed_ids[0, 7] = (changed_ids[0, 7] + 1) % 40
    changed_features[0, 7] += 1
    after_ids = logits_at(drafter, replace(batch, ids_BT=changed_ids))
    after_features = logits_at(drafter, replace(batch, features_BTLD=changed_features))
    for key, logits in before.items():
        _, position, step = key
        # Row p at step k has taken in the tokens up to p + 1 + k and the features up to p.
        assert torch.equal(after_ids[key], logits) == (position + 1 + step < 7), key
        assert torch.equal(after_features[key], logits) == (position < 7), key


def test_loss_is_the_cross_entropy_with_the_target_over_the_draft_vocabulary(
    heads: FrozenHeads, counts: Tensor, make_batch: MakeBatch
) -> None:
    config = Eagle3Config(draft_vocab_size=24, ttt_steps=2, step_loss_decay=0.5)
    vocabulary = DraftVocabulary.from_counts(counts, 24)
    drafter = Eagle3Drafter(config, heads, vocabulary)
    batch = make_batch((3, 9))
    rows = QueryRows.select(batch, 2)
    expected, weight = 0.0, 0.0
    with torch.no_grad():
        for step, (logits_NU, _) in enumerate(unroll(drafter, batch, rows, rows.supervised_NK.shape[1])):
            for n, position in enumerate(rows.position_N.tolist()):
                label = position + 2 + step
                if label in range(3, 9) and int(batch.ids_BT[0, label]) in vocabulary.ids_U.tolist():
                    target = (batch.final_BTD[0, label - 1] @ heads.lm_head_VD[vocabulary.ids_U].T).softmax(
                        -1
                    )
                    expected += 0.5**step * -float((target * logits_NU[n].log_softmax(-1)).sum())
                    weight += 0.5**step
    terms = drafter(batch)
    assert terms.loss_sum.item() == pytest.approx(expected, rel=1e-4)
    assert float(terms.weight_sum) == pytest.approx(weight)
    assert terms.counted_K.tolist() == [6, 6]

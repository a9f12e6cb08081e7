"""What a DFlash block sees and is judged by."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from eagleray.drafters.base import TrainingBatch
from eagleray.drafters.blocks.draft_vocab import DraftVocabulary
from eagleray.drafters.dflash.config import DFlashConfig
from eagleray.drafters.dflash.model import DFlashDrafter
from eagleray.drafters.dflash.step import Blocks, fill_blocks
from eagleray.errors import ConfigError
from eagleray.targets.heads import FrozenHeads

MakeBatch = Callable[..., TrainingBatch]


@pytest.fixture
def drafter(heads: FrozenHeads) -> DFlashDrafter:
    torch.manual_seed(3)
    return DFlashDrafter(DFlashConfig(block_size=4), heads, None)


def test_context_is_hidden_from_the_anchor_on(make_batch: MakeBatch) -> None:
    blocks = Blocks.choose(make_batch((2, 5), (3, 5)), 10, 3)
    assert blocks.anchor_N.tolist() == [2, 3, 3]
    x, o = True, False
    assert blocks.hidden_context(4).tolist() == [
        [[o, o, x, x], [o, o, o, x]],
        [[o, o, o, x], [x, x, x, x]],  # the second is padding: this row has one block
    ]
    assert blocks.positions().tolist() == [2, 3, 4, 3, 4, 5, 3, 4, 5]


def test_a_block_sees_exactly_the_features_before_its_anchor(
    drafter: DFlashDrafter, make_batch: MakeBatch
) -> None:
    batch = make_batch((2, 7), (4, 9))
    blocks = Blocks.choose(batch, 10, 4)
    for n, (row, anchor) in enumerate(zip(blocks.packing.batch_N, blocks.anchor_N.tolist(), strict=True)):
        features = batch.features_BTLD.clone().requires_grad_()
        hidden_NKD = fill_blocks(drafter, replace(batch, features_BTLD=features), blocks)
        for slot in range(4):
            (gradient,) = torch.autograd.grad(hidden_NKD[n, slot].sum(), features, retain_graph=True)
            touched = gradient.flatten(2).any(-1).nonzero().tolist()
            assert touched == [[int(row), position] for position in range(anchor)]


def test_a_block_sees_its_own_slots_both_ways_and_no_other_block(
    drafter: DFlashDrafter, make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = make_batch((2, 7), (4, 9))
    blocks = Blocks.choose(batch, 10, 4)
    embedded: list[Tensor] = []

    def embed(ids: Tensor) -> Tensor:
        embedded.append(drafter.heads.embed_VD[ids].requires_grad_())
        return embedded[-1]

    monkeypatch.setattr(drafter, "embed", embed)
    hidden_NKD = fill_blocks(drafter, batch, blocks)
    for n in range(len(hidden_NKD)):
        for slot in range(4):
            (gradient,) = torch.autograd.grad(hidden_NKD[n, slot].sum(), embedded[0], retain_graph=True)
            assert gradient.any(-1).nonzero().tolist() == [[n, other] for other in range(4)]


def test_only_the_anchor_token_enters_a_block(drafter: DFlashDrafter, make_batch: MakeBatch) -> None:
    batch = make_batch((2, 9))
    blocks = Blocks.choose(batch, 10, 4)
    changed = batch.ids_BT.clone()
    changed[0, 5] = (changed[0, 5] + 1) % 40
    with torch.no_grad():
        before = fill_blocks(drafter, batch, blocks)
        after = fill_blocks(drafter, replace(batch, ids_BT=changed), blocks)
    same = [torch.equal(a, b) for a, b in zip(before, after, strict=True)]
    assert same == [anchor != 5 for anchor in blocks.anchor_N.tolist()]


@pytest.mark.parametrize("soft_targets", [False, True])
def test_slot_k_is_judged_by_the_token_k_after_the_anchor_with_decaying_weight(
    heads: FrozenHeads, counts: Tensor, make_batch: MakeBatch, soft_targets: bool
) -> None:
    vocabulary = DraftVocabulary.from_counts(counts, 24)
    config = DFlashConfig(block_size=4, gamma=2.0, soft_targets=soft_targets, draft_vocab_size=24)
    drafter = DFlashDrafter(config, heads, vocabulary)
    batch = make_batch((3, 8))
    kept = vocabulary.ids_U.tolist()
    blocks = Blocks.choose(batch, 10, 4)
    loss, weight = 0.0, 0.0
    with torch.no_grad():
        hidden_NKD = drafter.norm(fill_blocks(drafter, batch, blocks))
        for n, anchor in enumerate(blocks.anchor_N.tolist()):
            for slot in range(1, 4):
                label = anchor + slot
                if label < 8 and int(batch.ids_BT[0, label]) in kept:
                    log_q = (hidden_NKD[n, slot] @ heads.lm_head_VD[kept].T).log_softmax(-1)
                    p = torch.zeros(24)
                    p[kept.index(int(batch.ids_BT[0, label]))] = 1
                    if soft_targets:
                        p = (batch.final_BTD[0, label - 1] @ heads.lm_head_VD[kept].T).softmax(-1)
                    loss -= math.exp(-(slot - 1) / 2) * float((p * log_q).sum())
                    weight += math.exp(-(slot - 1) / 2)
        terms = drafter(batch)
    assert float(terms.loss_sum) == pytest.approx(loss, rel=1e-4)
    assert float(terms.weight_sum) == pytest.approx(weight, rel=1e-5)
    assert terms.counted_K.tolist() == [4, 3, 2]


def test_mask_token_is_no_special_token_of_the_target_unless_set(heads: FrozenHeads) -> None:
    assert DFlashDrafter(DFlashConfig(), heads, None).mask_token_id == 0
    assert DFlashDrafter(DFlashConfig(mask_token_id=9), heads, None).mask_token_id == 9
    with pytest.raises(ConfigError, match="mask_token_id is 40"):
        DFlashDrafter(DFlashConfig(mask_token_id=40), heads, None)

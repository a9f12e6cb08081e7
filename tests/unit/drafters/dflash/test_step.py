"""What a DFlash block sees and is judged by, in every form."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch import Tensor

from eagleray.drafters.base import TrainingBatch
from eagleray.drafters.blocks.draft_vocab import DraftVocabulary
from eagleray.drafters.blocks.masked_block.context import Blocks
from eagleray.drafters.blocks.masked_block.step import Labels, dpace_weights, fill_blocks
from eagleray.drafters.dflash.config import DFlashConfig
from eagleray.drafters.dflash.model import DFlashDrafter
from eagleray.drafters.dflash.step import choose_kept
from eagleray.errors import ConfigError
from eagleray.targets.heads import FrozenHeads

MakeBatch = Callable[..., TrainingBatch]


@pytest.fixture
def drafter(heads: FrozenHeads, form: DFlashConfig) -> DFlashDrafter:
    torch.manual_seed(3)
    return DFlashDrafter(form, heads, None)


@pytest.fixture
def plain(heads: FrozenHeads) -> DFlashDrafter:
    torch.manual_seed(3)
    return DFlashDrafter(DFlashConfig(block_size=4), heads, None)


def masked(drafter: DFlashDrafter, batch: TrainingBatch, blocks: Blocks) -> Tensor:
    """States of blocks that hold nothing but their anchor."""
    anchors = batch.ids_BT[blocks.packing.batch_N, blocks.anchor_N]
    return fill_blocks(drafter, batch, blocks, drafter.block_ids(anchors, blocks.size))


def test_context_is_hidden_from_the_anchor_on(make_batch: MakeBatch) -> None:
    blocks = Blocks.choose(make_batch((2, 5), (3, 5)), 10, 3)
    assert blocks.anchor_N.tolist() == [2, 3, 3]
    x, o = True, False
    assert blocks.hidden_context(4, None).squeeze(2).tolist() == [
        [[o, o, x, x], [o, o, o, x]],
        [[o, o, o, x], [x, x, x, x]],  # the second is padding: this row has one block
    ]
    assert blocks.positions().tolist() == [[2, 3, 4], [3, 4, 5], [3, 4, 5]]


def test_a_window_of_w_positions_ends_w_minus_1_before_each_slot(make_batch: MakeBatch) -> None:
    blocks = Blocks.choose(make_batch((4, 6)), 10, 3)
    assert blocks.anchor_N.tolist() == [4]
    x, o = True, False
    # Slots at 4, 5 and 6 see from position 2, 3 and 4 on.
    assert blocks.hidden_context(5, 3).tolist() == [[[[x, x, o, o, x], [x, x, x, o, x], [x, x, x, x, x]]]]


def test_a_block_sees_the_features_before_its_anchor_within_its_windows(
    drafter: DFlashDrafter, make_batch: MakeBatch
) -> None:
    config = drafter.config
    batch = make_batch((2, 4), (9, 12))
    blocks = Blocks.choose(batch, 10, 5)
    # Injected features meet a slot in each layer; carried ones may travel a window in the lower layer
    # and another in the upper.
    windows = [reach.window or 100 for reach in drafter.reaches()]
    for n, (row, anchor) in enumerate(zip(blocks.packing.batch_N, blocks.anchor_N.tolist(), strict=True)):
        features = batch.features_BTLD.clone().requires_grad_()
        states_NKD = masked(drafter, replace(batch, features_BTLD=features), blocks)
        for slot in range(5):
            (gradient,) = torch.autograd.grad(states_NKD[n, slot].sum(), features, retain_graph=True)
            touched = gradient[row].flatten(1).any(-1).nonzero().flatten().tolist()
            assert not gradient[1 - row].any()
            # Slots in the lower layer that this slot sees in the upper one, and what those saw.
            seen_slots = range(slot + 1) if config.reach(1).causal else range(5)
            lowest = min(
                anchor + slot - windows[1] + 1,
                *(anchor + other - windows[0] + 1 for other in seen_slots),
            )
            if not config.kv_injection:
                lowest = min(lowest, anchor + slot - windows[1] + 1 - windows[0] + 1)
            assert touched == list(range(max(0, lowest), anchor)), (n, slot)


def test_a_block_sees_its_own_slots_and_no_other_block(
    drafter: DFlashDrafter, make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = make_batch((2, 7), (4, 9))
    blocks = Blocks.choose(batch, 10, 5)
    embedded: list[Tensor] = []

    def embed(ids: Tensor) -> Tensor:
        embedded.append(drafter.heads.embed_VD[ids].requires_grad_())
        return embedded[-1]

    monkeypatch.setattr(drafter, "embed", embed)
    states_NKD = masked(drafter, batch, blocks)
    causal = all(reach.causal for reach in drafter.reaches())
    for n in range(len(states_NKD)):
        for slot in range(5):
            (gradient,) = torch.autograd.grad(states_NKD[n, slot].sum(), embedded[0], retain_graph=True)
            seen = range(slot + 1) if causal else range(5)
            assert gradient.any(-1).nonzero().tolist() == [[n, other] for other in seen]


def test_in_a_causal_layer_over_a_full_one_only_the_lower_shows_later_slots(heads: FrozenHeads) -> None:
    config = DFlashConfig(
        layer_types=("full_attention", "sliding_attention"), sliding_window=8, is_causal=None
    )
    assert [config.reach(layer).causal for layer in range(2)] == [False, True]
    assert [config.reach(layer).window for layer in range(2)] == [None, 8]
    everywhere = config.model_copy(update={"is_causal": False})
    assert not everywhere.reach(1).causal


def test_a_token_enters_its_own_block_and_those_that_it_stands_in(
    drafter: DFlashDrafter, make_batch: MakeBatch
) -> None:
    """Masks hide the tokens after an anchor; token by token a block holds all but its last."""
    batch = make_batch((2, 14))
    changed = batch.ids_BT.clone()
    changed[0, 8] = (changed[0, 8] + 1) % 40
    inputs: list[Tensor] = []
    drafter.layers[0].input_layernorm.register_forward_hook(
        lambda _module, arguments, _out: inputs.append(arguments[0]) if arguments[0].ndim == 3 else None
    )
    with torch.no_grad():
        drafter(batch)
        drafter(replace(batch, ids_BT=changed))
    before, after = inputs
    anchors = Blocks.choose(batch, 100, 5).anchor_N.tolist()
    holds = [] if drafter.config.parallel_block else [1, 2, 3]
    if drafter.config.denoise_steps == 1:
        differs = [[n, slot] for n, a in enumerate(anchors) for slot in [0, *holds] if a + slot == 8]
        assert (before != after).any(-1).nonzero().tolist() == differs


@pytest.mark.parametrize("soft_targets", [False, True])
@pytest.mark.parametrize("parallel_block", [False, True])
def test_slot_k_is_judged_by_the_token_k_after_the_anchor_with_decaying_weight(
    heads: FrozenHeads, counts: Tensor, make_batch: MakeBatch, soft_targets: bool, parallel_block: bool
) -> None:
    vocabulary = DraftVocabulary.from_counts(counts, 24)
    config = DFlashConfig(
        block_size=4,
        gamma=2.0,
        soft_targets=soft_targets,
        draft_vocab_size=24,
        parallel_block=parallel_block,
    )
    drafter = DFlashDrafter(config, heads, vocabulary)
    batch = make_batch((3, 8))
    kept = vocabulary.ids_U.tolist()
    blocks = Blocks.choose(batch, 10, 4)
    loss, weight = 0.0, 0.0
    with torch.no_grad():
        if parallel_block:
            states_NPD = masked(drafter, batch, blocks)[:, 1:]
        else:
            tokens = F.pad(batch.ids_BT[0], (0, 4))[blocks.positions()]
            states_NPD = fill_blocks(drafter, batch, replace(blocks, size=3), tokens[:, :3])
        for n, anchor in enumerate(blocks.anchor_N.tolist()):
            for slot in range(1, 4):
                label = anchor + slot
                if label < 8 and int(batch.ids_BT[0, label]) in kept:
                    log_q = (states_NPD[n, slot - 1] @ heads.lm_head_VD[kept].T).log_softmax(-1)
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


def test_dpace_weighs_a_slot_by_the_slots_expected_to_be_accepted_from_it_on() -> None:
    probability_NP = torch.tensor([[0.5, 0.2, 1.0], [0.5, 0.9, 0.2]])
    judged_NP = torch.tensor([[True, True, True], [True, False, True]])
    # First row: s = .75, .6, 1 and c = .75, .45, .45. Second: s = .75, 1, .6 and c = .75, -, .45.
    expected = [[1.65, 0.90, 0.45], [1.20, 0.45, 0.45]]
    torch.testing.assert_close(dpace_weights(probability_NP, judged_NP, 0.5), torch.tensor(expected))


def test_dpace_weights_enter_the_loss_without_gradient(
    heads: FrozenHeads, counts: Tensor, make_batch: MakeBatch
) -> None:
    config = DFlashConfig(block_size=3, slot_weighting="dpace", dpace_alpha=0.25, draft_vocab_size=24)
    vocabulary = DraftVocabulary.from_counts(counts, 24)
    drafter = DFlashDrafter(config, heads, vocabulary)
    batch = make_batch((3, 9))
    blocks = Blocks.choose(batch, 10, 3)
    kept = vocabulary.ids_U.tolist()
    expected, weight = 0.0, 0.0
    for n, anchor in enumerate(blocks.anchor_N.tolist()):
        log_q_PU = (masked(drafter, batch, blocks)[n, 1:] @ heads.lm_head_VD[kept].T).log_softmax(-1)
        tokens = [int(token) for token in batch.ids_BT[0, anchor + 1 : anchor + 3]]
        gold = [log_q_PU[p, kept.index(t)] if t in kept else None for p, t in enumerate(tokens)]
        accepted = [0.25 + (0.75 * math.exp(g.item()) if g is not None else 0.0) for g in gold]
        reached = [accepted[0], *([accepted[0] * accepted[1]] if len(tokens) == 2 else [])]
        for slot, log_q in enumerate(gold):
            if log_q is not None:
                expected -= sum(reached[slot:]) * log_q.item()
                weight += sum(reached[slot:])
    terms = drafter(batch)
    assert terms.loss_sum.item() == pytest.approx(expected, rel=1e-4)
    assert terms.weight_sum.item() == pytest.approx(weight, rel=1e-4)
    assert not terms.weight_sum.requires_grad


def test_a_rehearsed_denoising_step_keeps_its_share_of_tokens_inside_the_sequence(
    make_batch: MakeBatch,
) -> None:
    config = DFlashConfig(block_size=7, denoise_steps=3)
    batch = make_batch((2, 60), seed=4)
    blocks = Blocks.choose(batch, 100, 7)
    labels = Labels.after(batch, blocks, 6)
    kept_NP = choose_kept(config, batch, blocks, labels)
    inside = blocks.anchor_N + 6 < 60
    assert sorted(set(kept_NP[inside].sum(1).tolist())) == [0, 2, 4]
    assert not kept_NP[labels.position_NP >= 60].any()
    assert torch.equal(kept_NP, choose_kept(config, batch, blocks, labels))


def test_a_slot_that_holds_its_token_is_not_judged(heads: FrozenHeads, make_batch: MakeBatch) -> None:
    config = DFlashConfig(block_size=7, denoise_steps=3)
    drafter = DFlashDrafter(config, heads, None)
    batch = make_batch((2, 60), seed=4)
    blocks = Blocks.choose(batch, 512, 7)
    labels = Labels.after(batch, blocks, 6)
    kept_NP = choose_kept(config, batch, blocks, labels)
    judged = (labels.judged_NP & ~kept_NP).sum(0)
    assert drafter(batch).counted_K.tolist() == judged.tolist()


def test_mask_token_is_no_special_token_of_the_target_unless_set(heads: FrozenHeads) -> None:
    assert DFlashDrafter(DFlashConfig(), heads, None).mask_token_id == 0
    assert DFlashDrafter(DFlashConfig(mask_token_id=9), heads, None).mask_token_id == 9
    with pytest.raises(ConfigError, match="mask_token_id is 40"):
        DFlashDrafter(DFlashConfig(mask_token_id=40), heads, None)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (partial(DFlashConfig, layer_types=("full_attention",)), "1 entries for num_layers 2"),
        (partial(DFlashConfig, layer_types=("sliding_attention",) * 2), "sliding_window is None"),
        (
            partial(DFlashConfig, layer_types=("sliding_attention",) * 2, sliding_window=7),
            "set it to block_size 8 or more",
        ),
        (partial(DFlashConfig, denoise_steps=2, parallel_block=False), "has no masks"),
        (partial(DFlashConfig, denoise_steps=8), "expected at most 7"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    settings: Callable[[], DFlashConfig], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        settings()


def test_only_the_whole_method_has_the_name_that_engines_run(
    drafter: DFlashDrafter, form: DFlashConfig
) -> None:
    content = drafter.export_config()
    whole = form.kv_injection and form.parallel_block
    assert (content["architectures"] == ["DFlashDraftModel"]) == whole
    assert [("not served" in need) for need in drafter.export_profile()["engines"].values()] == [
        not whole
    ] * 2
    ablation = {key: content["dflash_config"].get(key) for key in ("kv_injection", "parallel_block")}
    assert ablation == {
        "kv_injection": None if form.kv_injection else False,
        "parallel_block": None if form.parallel_block else False,
    }
    slides = "sliding_attention" in content["layer_types"]
    assert content["use_sliding_window"] == slides
    assert content["sliding_window"] == (6 if slides else None)
    assert content.get("is_causal") == form.is_causal

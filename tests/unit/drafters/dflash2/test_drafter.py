"""DFlash 2 starts as DFlash, learns by its own loss, and walks over its candidates."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from eagleray.drafters.base import TrainableDrafter, TrainingBatch
from eagleray.drafters.blocks.masked_block.context import Blocks
from eagleray.drafters.blocks.masked_block.step import Labels
from eagleray.drafters.catalog import build_trainable_drafter
from eagleray.drafters.config import DrafterConfig
from eagleray.drafters.dflash.config import DFlashConfig
from eagleray.drafters.dflash2.config import DFlash2Config
from eagleray.drafters.dflash2.model import DFlash2Drafter
from eagleray.drafters.dflash2.step import select
from eagleray.drafters.eagle3.config import Eagle3Config
from eagleray.errors import ArtifactError, ConfigError
from eagleray.targets.heads import FrozenHeads

MakeBatch = Callable[..., TrainingBatch]
Observe = Callable[..., None]
ORIGIN = Path("earlier")


def shaken(config: DrafterConfig, heads: FrozenHeads, counts: Tensor, scale: float = 0.4) -> TrainableDrafter:
    """A drafter whose weights let everything that it attends to move its drafts."""
    drafter = build_trainable_drafter(config, heads, counts)
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for parameter in drafter.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=scale)
    return drafter


@pytest.mark.parametrize("vocabulary", [None, 24])
def test_warm_started_from_dflash_it_drafts_exactly_as_dflash_did(
    heads: FrozenHeads, counts: Tensor, make_batch: MakeBatch, observe: Observe, vocabulary: int | None
) -> None:
    earlier = shaken(DFlashConfig(block_size=5, draft_vocab_size=vocabulary), heads, counts)
    later = build_trainable_drafter(
        DFlash2Config(block_size=5, draft_vocab_size=vocabulary, selector_rank=4), heads, counts
    )
    later.warm_start(earlier.export_tensors(), ORIGIN)
    batch = make_batch((3, 16), (3, 16))
    drafts = []
    for drafter in (earlier, later):
        states: list[Tensor] = []
        handle = drafter.norm.register_forward_hook(lambda _m, _i, out, states=states: states.append(out))
        for anchor in range(1, 15):
            session = drafter.open_session(2, 20)
            for row in range(2):
                observe(session, batch, row, row, 0, anchor)
            drafts.append(session.draft(2, 4))
        handle.remove()
        drafts.append(torch.cat(states))
    before, after = drafts[: len(drafts) // 2], drafts[len(drafts) // 2 :]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    # A fresh selector adds to the loss what the slots' own logits cost among the candidates.
    assert later(batch).loss_sum > earlier(batch).loss_sum
    assert torch.equal(later(batch).weight_sum, earlier(batch).weight_sum)


def test_it_goes_on_from_its_own_export_with_what_it_had_learned(heads: FrozenHeads, counts: Tensor) -> None:
    config = DFlash2Config(block_size=5, selector_rank=4)
    earlier, later = shaken(config, heads, counts), build_trainable_drafter(config, heads, counts)
    later.warm_start(earlier.export_tensors(), ORIGIN)
    again = later.export_tensors()
    assert all(torch.equal(tensor, again[name]) for name, tensor in earlier.export_tensors().items())


def test_it_does_not_start_from_another_algorithm(heads: FrozenHeads, counts: Tensor) -> None:
    other = build_trainable_drafter(Eagle3Config(draft_vocab_size=24), heads, counts)
    later = build_trainable_drafter(DFlash2Config(block_size=5, selector_rank=4), heads, counts)
    with pytest.raises(ArtifactError, match=r"Missing: \['hidden_norm.weight'"):
        later.warm_start(other.export_tensors(), ORIGIN)


@torch.inference_mode()
@pytest.mark.parametrize("vocabulary", [None, 24])
def test_a_draft_walks_over_the_best_tokens_of_each_slot(
    heads: FrozenHeads, counts: Tensor, make_batch: MakeBatch, observe: Observe, vocabulary: int | None
) -> None:
    config = DFlash2Config(block_size=5, selector_rank=4, selector_top_k=6, draft_vocab_size=vocabulary)
    drafter = shaken(config, heads, counts)
    assert isinstance(drafter, DFlash2Drafter)
    kept = range(40) if vocabulary is None else drafter.kept_ids_U().tolist()
    batch = make_batch((3, 16))
    states: list[Tensor] = []
    drafter.norm.register_forward_hook(lambda _m, _i, out: states.append(out[0]))
    moved = 0
    for anchor in range(1, 15):
        session = drafter.open_session(1, 20)
        observe(session, batch, 0, 0, 0, anchor)
        drafted = session.draft(1, 4)[0].tolist()
        previous = int(batch.ids_BT[0, anchor])
        for slot in range(4):
            state_D = states[-1][slot + 1]
            logits = {token: float(heads.lm_head_VD[token] @ state_D) for token in kept}
            best = sorted(logits, key=lambda token: -logits[token])[:6]
            edges = drafter.candidate_selector.edges(
                state_D[None], torch.tensor([previous]), torch.tensor([best])
            )[0]
            scores = {token: logits[token] + float(edge) for token, edge in zip(best, edges, strict=True)}
            previous = max(scores, key=lambda token: scores[token])
            assert drafted[slot] == previous
            moved += previous != best[0]
    assert moved > 5, "the selector never changed a choice, so the test proves nothing"


def test_the_selector_learns_from_the_true_predecessor_and_is_given_a_missed_token(
    heads: FrozenHeads, make_batch: MakeBatch
) -> None:
    config = DFlash2Config(block_size=4, selector_rank=4, selector_top_k=5)
    drafter = DFlash2Drafter(config, heads, None)
    torch.nn.init.normal_(drafter.candidate_selector.successor_codebook)
    batch = make_batch((3, 12))
    labels = Labels.after(batch, Blocks.choose(batch, 100, 4), 3)
    before_NP = labels.ids_NP.roll(1, 1)
    states_NPD = torch.randn(*labels.ids_NP.shape, 16)
    logits_NPU = F.linear(states_NPD, heads.lm_head_VD)
    with torch.no_grad():
        losses_NP, right_NP = select(drafter, labels, before_NP, states_NPD, logits_NPU)
    missed = 0
    for n, p in torch.cartesian_prod(*map(torch.arange, labels.ids_NP.shape)).tolist():
        gold = int(labels.ids_NP[n, p])
        best = logits_NPU[n, p].topk(5).indices.tolist()
        taught = best if gold in best else [*best[:4], gold]
        missed += gold not in best
        edges = drafter.candidate_selector.edges(
            states_NPD[n, p][None], before_NP[n, p][None], torch.tensor([taught])
        )[0]
        scores = logits_NPU[n, p, taught] + edges.detach()
        expected = F.cross_entropy(scores[None], torch.tensor([taught.index(gold)]))
        torch.testing.assert_close(losses_NP[n, p], expected)
        assert bool(right_NP[n, p]) == (gold in best and taught[int(scores.argmax())] == gold)
    assert missed > 3


def test_its_folder_has_the_names_that_engines_load(heads: FrozenHeads, counts: Tensor) -> None:
    config = DFlash2Config(block_size=4, conv_group_size=8, selector_rank=4, selector_top_k=5)
    drafter = build_trainable_drafter(config, heads, counts)
    content = drafter.export_config()
    assert content["architectures"] == ["DFlash2DraftModel"]
    assert content["dflash_config"] == {
        "block_size": 4,
        "num_target_layers": 8,
        "mask_token_id": 0,
        "target_layer_ids": [1, 3, 4],
        "conv_kernel_size": 2,
        "conv_group_size": 8,
        "selector_rank": 4,
        "selector_top_k": 5,
    }
    plain = build_trainable_drafter(DFlashConfig(block_size=4), heads, counts).export_tensors()
    extra = {n: tuple(t.shape) for n, t in drafter.export_tensors().items() if n not in plain}
    convolutions = {
        f"layers.{layer}.{place}_conv.{name}": shape
        for layer in range(2)
        for place in ("attention", "mlp")
        for name, shape in {"base_kernel": (2, 2, 16), "kernel_projection.weight": (8, 16)}.items()
    }
    assert extra == {
        **convolutions,
        "candidate_selector.predecessor_codebook": (40, 4),
        "candidate_selector.successor_codebook": (40, 4),
        "candidate_selector.hidden_projection.weight": (4, 16),
    }


def test_over_a_reduced_vocabulary_no_engine_takes_it_for_its_own(heads: FrozenHeads, counts: Tensor) -> None:
    drafter = build_trainable_drafter(DFlash2Config(block_size=4, draft_vocab_size=24), heads, counts)
    assert drafter.export_config()["architectures"] == ["DFlash2ReducedVocabularyDraftModel"]
    assert all("not served" in need for need in drafter.export_profile()["engines"].values())


def test_channel_groups_must_divide_the_width(heads: FrozenHeads) -> None:
    with pytest.raises(ConfigError, match="conv_group_size is 5; expected a divisor of 16"):
        build_trainable_drafter(DFlash2Config(conv_group_size=5), heads)

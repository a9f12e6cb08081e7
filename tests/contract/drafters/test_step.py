"""What a training step of any drafter promises."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from eagleray.drafters.base import StepTerms, TrainableDrafter, TrainingBatch
from eagleray.drafters.config import DrafterConfig
from eagleray.targets.decoder import TargetDecoder
from eagleray.training.collate import lay_out

MakeDrafter = Callable[..., TrainableDrafter]
BatchFor = Callable[..., TrainingBatch]
LOUD = 50.0
"""Far beyond any real feature: whoever looks at it drafts something else."""


def assert_same(first: StepTerms, second: StepTerms) -> None:
    """Two steps are the same up to the order of sums."""
    torch.testing.assert_close(first.loss_sum, second.loss_sum)
    torch.testing.assert_close(first.weight_sum, second.weight_sum)
    assert torch.equal(first.correct_K, second.correct_K)
    assert torch.equal(first.counted_K, second.counted_K)


def test_terms_are_two_scalars_and_two_counts_of_every_slot(
    drafter: TrainableDrafter, batch_for: BatchFor
) -> None:
    terms = drafter(batch_for(drafter, (3, 12)))
    assert terms.loss_sum.shape == terms.weight_sum.shape == ()
    assert terms.loss_sum.requires_grad
    assert not terms.weight_sum.requires_grad
    assert terms.correct_K.shape == terms.counted_K.shape
    assert len(terms.counted_K) <= (drafter.max_depth or len(terms.counted_K))
    assert (terms.correct_K <= terms.counted_K).all()
    assert (terms.counted_K > 0).all()


@pytest.mark.parametrize("anchor", [1, 6, 11])
def test_slot_k_of_a_training_step_is_slot_k_of_a_live_draft(
    config: DrafterConfig,
    any_target: TargetDecoder,
    make_drafter: MakeDrafter,
    sequence_for: Callable[..., TrainingBatch],
    observe: Callable[..., None],
    anchor: int,
) -> None:
    """A live draft cannot look ahead and knows which token follows which, so this proves alignment and
    that nothing leaks: features from the anchor on are loud noise, and the token of slot k is not yet known.
    """
    drafter = make_drafter(config, any_target)
    batch = sequence_for(any_target, drafter, (20, 20))
    session = drafter.open_session(1, 20)
    observe(session, batch, {0: (0, 0, anchor)})
    slots = len(drafter(batch).counted_K)
    drafted = session.draft(1, slots)[0]
    ids_BT, features_BTLD = batch.ids_BT.clone(), batch.features_BTLD.clone()
    final_BTD = batch.final_BTD.clone()
    ids_BT[0, anchor + 1 : anchor + 1 + slots] = drafted
    features_BTLD[:, anchor:] = LOUD * torch.randn_like(features_BTLD[:, anchor:])
    final_BTD[:, anchor:] = LOUD * torch.randn_like(final_BTD[:, anchor:])
    for slot in range(1, slots + 1):
        supervised_BT = torch.zeros_like(batch.supervised_BT)
        supervised_BT[0, anchor : anchor + slot + 1] = True
        drawn = replace(
            batch,
            ids_BT=ids_BT,
            supervised_BT=supervised_BT,
            features_BTLD=features_BTLD,
            final_BTD=final_BTD,
        )
        # Only the prediction from this anchor is judged by this token in this slot: it alone changes sides.
        other = ids_BT.clone()
        other[0, anchor + slot] = (other[0, anchor + slot] + 1) % any_target.geometry.vocab_size
        with torch.no_grad():
            right, wrong = drafter(drawn), drafter(replace(drawn, ids_BT=other))
        assert int(right.correct_K[slot - 1]) - int(wrong.correct_K[slot - 1]) == 1, slot
        assert torch.equal(right.counted_K, wrong.counted_K)


def test_nothing_after_the_last_supervised_token_matters(
    drafter: TrainableDrafter, batch_for: BatchFor
) -> None:
    """The last label is the token at 6: it is drafted from features up to 4 and taught by the state at 5."""
    batch = batch_for(drafter, (4, 8))
    batch.supervised_BT[:, 7:] = False
    ids_BT, features_BTLD = batch.ids_BT.clone(), batch.features_BTLD.clone()
    final_BTD = batch.final_BTD.clone()
    ids_BT[:, 7:] = 5
    features_BTLD[:, 5:] = LOUD
    final_BTD[:, 6:] = LOUD
    changed = replace(batch, ids_BT=ids_BT, features_BTLD=features_BTLD, final_BTD=final_BTD)
    with torch.no_grad():
        assert_same(drafter(batch), drafter(changed))


def test_every_answer_token_that_a_draft_can_reach_is_a_label(
    drafter: TrainableDrafter, batch_for: BatchFor
) -> None:
    """Of answer tokens 4, 5 and 6, slot 1 learns all but perhaps the first, whose anchor is in the prompt."""
    batch = batch_for(drafter, (4, 7))
    assert int(drafter(batch).counted_K[0]) in (2, 3)


def test_every_parameter_learns_and_nothing_else(drafter: TrainableDrafter, batch_for: BatchFor) -> None:
    batch = batch_for(drafter, (3, 16), (2, 12))
    batch.features_BTLD.requires_grad_()
    drafter(batch).loss_sum.backward()
    for name, parameter in drafter.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
            assert parameter.grad.any(), name
    heads = drafter.heads  # type: ignore[attr-defined]
    assert not heads.embed_VD.requires_grad
    assert not heads.lm_head_VD.requires_grad
    borrowed = {heads.embed_VD.data_ptr(), heads.lm_head_VD.data_ptr()}
    assert not borrowed & {tensor.data_ptr() for tensor in drafter.state_dict().values()}


def test_a_fresh_drafter_has_finite_gradients(
    config: DrafterConfig, target: TargetDecoder, make_drafter: MakeDrafter, batch_for: BatchFor
) -> None:
    drafter = make_drafter(config, target, shaken=False)
    drafter(batch_for(drafter, (3, 16))).loss_sum.backward()
    for name, parameter in drafter.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name


def test_a_split_batch_adds_up_to_the_whole(drafter: TrainableDrafter, batch_for: BatchFor) -> None:
    """One supervised token in one row and many in the other, so that a mean of means would show."""
    batch = batch_for(drafter, (10, 12), (2, 20), seed=4)
    parts = [
        drafter(
            TrainingBatch(
                ids_BT=batch.ids_BT[row : row + 1, :length],
                lengths_B=batch.lengths_B[row : row + 1],
                supervised_BT=batch.supervised_BT[row : row + 1, :length],
                features_BTLD=batch.features_BTLD[row : row + 1, :length],
                final_BTD=batch.final_BTD[row : row + 1, :length],
                seed=4,
            )
        )
        for row, length in enumerate([12, 20])
    ]
    together = StepTerms(
        loss_sum=parts[0].loss_sum + parts[1].loss_sum,
        weight_sum=parts[0].weight_sum + parts[1].weight_sum,
        correct_K=parts[0].correct_K + parts[1].correct_K,
        counted_K=parts[0].counted_K + parts[1].counted_K,
    )
    assert_same(drafter(batch), together)


def in_shared_rows(batch: TrainingBatch, packed: tuple[tuple[int, ...], ...]) -> TrainingBatch:
    """The samples of a batch, in order, laid into rows as `packed` says."""
    return replace(
        batch,
        ids_BT=lay_out(batch.ids_BT, packed),
        lengths_B=torch.tensor([sum(lengths) for lengths in packed]),
        supervised_BT=lay_out(batch.supervised_BT, packed),
        features_BTLD=lay_out(batch.features_BTLD, packed),
        final_BTD=lay_out(batch.final_BTD, packed),
        packed=packed,
    )


def loss_and_gradients(drafter: TrainableDrafter, batch: TrainingBatch) -> dict[str, torch.Tensor]:
    drafter.zero_grad()
    terms = drafter(batch)
    terms.loss_sum.backward()
    learned = {name: p.grad for name, p in drafter.named_parameters() if p.grad is not None}
    counts = {"correct": terms.correct_K, "counted": terms.counted_K, "weight": terms.weight_sum}
    return {"loss": terms.loss_sum.detach(), **counts, **learned}


@pytest.fixture
def rolling(config: DrafterConfig, target: TargetDecoder, make_drafter: MakeDrafter) -> TrainableDrafter:
    """A drafter in float64 that rolls the dice it has: for few anchors, noise and denoising steps."""
    dice = {"num_anchors": 5, "feature_noise": 0.05}
    if getattr(config, "parallel_block", False):
        dice["denoise_steps"] = 3
    known = {name: value for name, value in dice.items() if name in type(config).model_fields}
    return make_drafter(config.model_copy(update=known), target).double()


def test_samples_that_share_a_row_teach_what_they_teach_alone(
    rolling: TrainableDrafter, batch_for: BatchFor
) -> None:
    """Answers lie next to the prompt, or the answer, of the next sample; one is its sample's first token."""
    batch = batch_for(rolling, (3, 12), (0, 8), (2, 16), (7, 8), (4, 9), seed=5)
    batch = replace(batch, features_BTLD=batch.features_BTLD.double(), final_BTD=batch.final_BTD.double())
    alone = loss_and_gradients(rolling, batch)
    for packed in (((12, 8), (16, 8), (9,)), ((12, 8, 16, 8, 9),)):
        together = loss_and_gradients(rolling, in_shared_rows(batch, packed))
        assert together.keys() == alone.keys()
        for name, expected in alone.items():
            torch.testing.assert_close(together[name], expected, rtol=1e-9, atol=1e-10, msg=name)


@pytest.mark.parametrize("taught", [0, 1, 2])
def test_a_sample_learns_nothing_from_those_it_shares_a_row_with(
    rolling: TrainableDrafter, batch_for: BatchFor, taught: int
) -> None:
    batch = in_shared_rows(batch_for(rolling, (2, 10), (3, 9), (2, 11), seed=5), ((10, 9, 11),))
    start, end = [(0, 10), (10, 19), (19, 30)][taught]
    own_T = (torch.arange(30) >= start) & (torch.arange(30) < end)
    batch = replace(batch, supervised_BT=batch.supervised_BT & own_T)
    before = loss_and_gradients(rolling, batch)
    assert before["counted"].any()
    ids_BT, others = batch.ids_BT.clone(), int((~own_T).sum())
    features_BTLD, final_BTD = batch.features_BTLD.clone(), batch.final_BTD.clone()
    ids_BT[0, ~own_T] = torch.arange(others) % 30 + 3
    features_BTLD[0, ~own_T] = LOUD * torch.randn(others, *features_BTLD.shape[2:])
    final_BTD[0, ~own_T] = LOUD * torch.randn(others, final_BTD.shape[-1])
    changed = replace(batch, ids_BT=ids_BT, features_BTLD=features_BTLD, final_BTD=final_BTD)
    after = loss_and_gradients(rolling, changed)
    for name, expected in before.items():
        torch.testing.assert_close(after[name], expected, rtol=1e-12, atol=1e-14, msg=name)


def test_padding_is_never_looked_at(drafter: TrainableDrafter, batch_for: BatchFor) -> None:
    batch = batch_for(drafter, (3, 9), (5, 12))
    ids_BT = torch.nn.functional.pad(batch.ids_BT, (0, 5), value=2)
    features_BTLD = torch.nn.functional.pad(batch.features_BTLD, (0, 0, 0, 0, 0, 5))
    final_BTD = torch.nn.functional.pad(batch.final_BTD, (0, 0, 0, 5))
    for row, length in enumerate([9, 12]):
        ids_BT[row, length:] = 2 + row
        features_BTLD[row, length:] = LOUD
        final_BTD[row, length:] = LOUD
    wide = replace(
        batch,
        ids_BT=ids_BT,
        supervised_BT=torch.nn.functional.pad(batch.supervised_BT, (0, 5)),
        features_BTLD=features_BTLD,
        final_BTD=final_BTD,
    )
    assert_same(drafter(batch), drafter(wide))


def test_a_batch_without_an_answer_has_no_loss_and_no_gradient(
    drafter: TrainableDrafter, batch_for: BatchFor
) -> None:
    terms = drafter(batch_for(drafter, (6, 6)))
    terms.loss_sum.backward()
    assert float(terms.loss_sum.detach()) == float(terms.weight_sum) == 0
    assert not terms.counted_K.any()
    assert all(p.grad is None or not p.grad.any() for p in drafter.parameters())


def test_a_seed_decides_every_random_choice(drafter: TrainableDrafter, batch_for: BatchFor) -> None:
    batch = batch_for(drafter, (3, 30), seed=11)
    with torch.no_grad():
        first = drafter(batch)
        torch.rand(5)
        second = drafter(batch)
    assert torch.equal(first.loss_sum, second.loss_sum)
    assert torch.equal(first.correct_K, second.correct_K)


def test_weights_are_float32_and_norms_move_beside_a_bfloat16_target(
    config: DrafterConfig,
    bfloat16_target: TargetDecoder,
    make_drafter: MakeDrafter,
    sequence_for: BatchFor,
    observe: Callable[..., None],
) -> None:
    """A bfloat16 weight at 1.0 takes no step below 0.002, so small updates would never add up."""
    drafter = make_drafter(config, bfloat16_target, shaken=False)
    assert {parameter.dtype for parameter in drafter.parameters()} == {torch.float32}
    batch = sequence_for(bfloat16_target, drafter, (3, 16))
    learned = {name: p for name, p in drafter.named_parameters() if p.requires_grad}
    before = {name: p.detach().clone() for name, p in learned.items()}
    optimizer = torch.optim.AdamW(learned.values(), lr=1e-3)
    for _ in range(2):
        drafter(batch).loss_sum.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert [name for name, p in learned.items() if torch.equal(p, before[name])] == []
    session = drafter.open_session(1, 16)
    observe(session, batch, {0: (0, 0, 9)})
    assert session.draft(1, 1).shape == (1, 1)

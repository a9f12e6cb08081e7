"""What the session of any drafter promises."""

from collections.abc import Callable

import torch

from eagleray.drafters.base import TrainableDrafter, TrainingBatch
from eagleray.drafters.config import DrafterConfig
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

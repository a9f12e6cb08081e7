"""Packing: rows go to their slots and come back."""

import torch

from eagleray.drafters.blocks.packing import Packing


def test_rows_keep_their_place_in_an_in_place_packing() -> None:
    mask_BA = torch.tensor([[True, False, True], [False, True, False]])
    packing = Packing.in_place(mask_BA)
    padded = packing.pad(torch.tensor([[1.0], [2.0], [3.0]]))
    assert padded[..., 0].tolist() == [[1, 0, 2], [0, 3, 0]]
    assert packing.pack(padded)[:, 0].tolist() == [1, 2, 3]


def test_rows_move_to_the_front_in_a_compacted_packing() -> None:
    packing = Packing.compacted(torch.tensor([0, 2, 2]), 3)
    padded = packing.pad(torch.tensor([5, 6, 7]))
    assert padded.tolist() == [[5, 0], [0, 0], [6, 7]]
    assert packing.pack(padded).tolist() == [5, 6, 7]


def test_gradients_pass_through_both_ways() -> None:
    packing = Packing.in_place(torch.tensor([[True, False], [True, True]]))
    rows = torch.randn(3, 2, requires_grad=True)
    (packing.pack(packing.pad(rows)) * torch.tensor([[1.0], [2.0], [3.0]])).sum().backward()
    assert rows.grad is not None
    assert rows.grad.tolist() == [[1, 1], [2, 2], [3, 3]]

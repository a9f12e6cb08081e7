"""Compares the fused kernel with its plain twin on the device that is named; ends with an error if they
differ."""

import sys

import torch

from eagleray.drafters.blocks.layers import Angles
from eagleray.drafters.blocks.norm_rotate import norm_rotate_plain
from eagleray.drafters.blocks.norm_rotate_triton import norm_rotate_fused


def compare(device: str) -> None:
    generator = torch.Generator().manual_seed(0)
    for positions, layers, groups, width in ((1, 1, 1, 16), (5, 3, 2, 64), (9, 2, 4, 128)):
        product = torch.randn(positions, layers, 2, groups, width, generator=generator).to(device)
        weight_Ld = torch.randn(layers, width, generator=generator).to(device)
        turns = torch.randn(positions, 1, width // 2, generator=generator)
        cos, sin = turns.cos(), turns.sin()
        angles = Angles(torch.cat((cos, cos), -1).to(device), torch.cat((-sin, sin), -1).to(device))
        keys_NLGd = product[:, :, 0]
        torch.testing.assert_close(
            norm_rotate_fused(keys_NLGd, weight_Ld, 1e-5, angles),
            norm_rotate_plain(keys_NLGd, weight_Ld, 1e-5, angles),
            atol=1e-5,
            rtol=1e-5,
        )


compare(sys.argv[1])

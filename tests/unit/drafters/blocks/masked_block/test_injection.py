"""Keys and values of all layers at once are those of each layer by itself."""

import os
import subprocess
import sys
from pathlib import Path

import torch

from eagleray.drafters.blocks.layers import Angles, Dimensions
from eagleray.drafters.blocks.masked_block.injection import Injection
from eagleray.drafters.blocks.masked_block.layer import MaskedBlockLayer

DIMENSIONS = Dimensions(
    hidden_size=24, intermediate_size=32, num_heads=4, num_kv_heads=2, head_dim=16, rms_norm_eps=1e-5
)


def random_angles(positions: int) -> Angles:
    turns_N1h = torch.arange(positions)[:, None, None] * torch.linspace(1.0, 0.1, DIMENSIONS.head_dim // 2)
    cos, sin = turns_N1h.cos(), turns_N1h.sin()
    return Angles(torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1))


def test_one_product_gives_what_every_layer_gives() -> None:
    torch.manual_seed(0)
    layers = [MaskedBlockLayer(DIMENSIONS) for _ in range(3)]
    for layer in layers:
        torch.nn.init.normal_(layer.self_attn.k_norm.weight)
    context_ND, angles = torch.randn(7, 24), random_angles(7)
    with torch.no_grad():
        keys_NLGd, values_NLGd = Injection(layers, DIMENSIONS.rms_norm_eps)(context_ND, angles)
        for index, layer in enumerate(layers):
            keys_NGd, values_NGd = layer.self_attn.keys_values(context_ND, angles)
            torch.testing.assert_close(keys_NLGd[:, index], keys_NGd)
            torch.testing.assert_close(values_NLGd[:, index], values_NGd)


def test_the_fused_kernel_gives_what_the_plain_twin_gives_in_tritons_interpreter() -> None:
    """In a process of its own: Triton reads at its import whether to interpret."""
    script = Path(__file__).with_name("compare_norm_rotate.py")
    result = subprocess.run(
        [sys.executable, script, "cpu"],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr

"""The two parts that DFlash 2 adds, by their equations."""

import torch
from torch import Tensor

from eagleray.drafters.dflash2.convolution import SurroundingConvolution
from eagleray.drafters.dflash2.selector import CandidateSelector


def shaken(module: torch.nn.Module) -> None:
    torch.manual_seed(5)
    for parameter in module.parameters():
        parameter.data.normal_()


def by_hand(conv: SurroundingConvolution, side: int, rows_NKD: Tensor, source_NKD: Tensor) -> Tensor:
    """out[i, c] = sum over taps of (base[side, tap, c] + delta[i, side, tap, group of c]) * x[i - tap, c]."""
    taps, width = conv.base_kernel.shape[1:]
    out = torch.zeros_like(rows_NKD)
    for n, block in enumerate(rows_NKD):
        for i in range(len(block)):
            delta = (conv.kernel_projection.weight @ source_NKD[n, i]).view(2, taps, width // conv.group)
            for c in range(width):
                for tap in range(min(taps, i + 1)):
                    kernel = conv.base_kernel[side, tap, c] + delta[side, tap, c // conv.group]
                    out[n, i, c] += kernel * block[i - tap, c]
    return out


def test_both_convolutions_take_their_coefficients_from_the_sublayers_input() -> None:
    conv = SurroundingConvolution(6, taps=3, group=2)
    shaken(conv)
    source_NKD = torch.randn(2, 4, 6)
    with torch.no_grad():
        inner = by_hand(conv, 0, source_NKD, source_NKD)
        expected = by_hand(conv, 1, inner.sin(), source_NKD)
        torch.testing.assert_close(conv(source_NKD, torch.sin), expected)


def test_a_block_of_fewer_slots_than_taps_is_convolved_too() -> None:
    conv = SurroundingConvolution(6, taps=3, group=3)
    shaken(conv)
    source_NKD = torch.randn(2, 1, 6)
    with torch.no_grad():
        inner = by_hand(conv, 0, source_NKD, source_NKD)
        torch.testing.assert_close(conv(source_NKD, torch.sin), by_hand(conv, 1, inner.sin(), source_NKD))


def test_a_fresh_convolution_is_bitwise_not_there() -> None:
    conv = SurroundingConvolution(6, taps=3, group=2)
    source_NKD = torch.randn(2, 4, 6)
    assert torch.equal(conv(source_NKD, torch.sin), source_NKD.sin())


def test_an_edge_is_the_gated_product_of_two_tokens_vectors() -> None:
    selector = CandidateSelector(4, vocab_size=9, rank=3)
    shaken(selector)
    states_ND, predecessor_N = torch.randn(2, 4), torch.tensor([3, 8])
    candidate_NC = torch.tensor([[1, 2], [8, 0]])
    with torch.no_grad():
        edges_NC = selector.edges(states_ND, predecessor_N, candidate_NC)
        for n in range(2):
            gate = selector.predecessor_codebook[predecessor_N[n]] * selector.hidden_projection(states_ND[n])
            for c in range(2):
                expected = (gate * selector.successor_codebook[candidate_NC[n, c]]).sum()
                torch.testing.assert_close(edges_NC[n, c], expected)

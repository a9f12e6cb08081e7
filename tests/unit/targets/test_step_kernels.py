"""Compiled code of a decode step, and its plain twins in torch."""

import pytest
import torch
import torch.nn.functional as F

from eagleray.speculation.trees import TokenTree
from eagleray.targets.attention import (
    CompiledStepAttention,
    ExactTreeAttention,
    StepAttention,
    StepPlaces,
    TreeAttention,
)
from eagleray.targets.decoder import TargetDecoder
from eagleray.targets.geometry import TargetGeometry
from eagleray.targets.kernels import step
from eagleray.targets.kv_cache import KVCache

HEADS, GROUPS = 6, 2
TREE = [-1, -1, 0, 0, 2, 1, 4]
"""Parents of the nodes: a path of four and branches."""


def geometry_of(width: int) -> TargetGeometry:
    config = {
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_size": HEADS * width,
        "intermediate_size": 64,
        "num_attention_heads": HEADS,
        "num_key_value_heads": GROUPS,
        "vocab_size": 10,
        "max_position_embeddings": 1000,
    }
    return TargetGeometry.from_config(config, ())


def filled_cache(lengths: list[int], width: int, seed: int = 0) -> KVCache:
    """Rows of random keys and values."""
    cache = KVCache(geometry_of(width), len(lengths), 600, torch.float32, torch.device("cpu"))
    cache.reserve(len(lengths), 600)
    generator = torch.Generator().manual_seed(seed)
    for row, length in enumerate(lengths):
        for tensors in (cache.keys, cache.values):
            tensors[0][row, :, :length] = torch.randn(GROUPS, length, width, generator=generator)
        cache.lengths[row] = length
    return cache


Views = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def new_tokens(rows: int, queries: int, width: int, kept: torch.Tensor | slice = slice(None)) -> Views:
    """Queries, keys and values of some of the tokens: views of one tensor, as a layer makes them."""
    generator = torch.Generator().manual_seed(1)
    heads = torch.randn(rows * queries, HEADS + 2 * GROUPS, width, generator=generator)[kept] * 2
    return heads[:, :HEADS], heads[:, HEADS : HEADS + GROUPS], heads[:, HEADS + GROUPS :]


def ancestry(rows: int) -> torch.Tensor:
    parents_BN = torch.tensor([TREE] * rows)
    return TokenTree(torch.zeros_like(parents_BN), parents_BN).ancestry()


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_norm_and_gate_equal_their_plain_twins(scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    x_TD, weight_D = torch.randn(5, 96, generator=generator) * scale, torch.rand(96, generator=generator)
    expected = F.rms_norm(x_TD, (96,), weight_D, 1e-5)
    torch.testing.assert_close(step.rms_norm(x_TD, weight_D, 1e-5), expected, atol=1e-6, rtol=1e-6)
    gate_TF, up_TF = x_TD.chunk(2, dim=-1)
    expected = F.silu(gate_TF) * up_TF
    torch.testing.assert_close(step.silu_multiply(x_TD), expected, atol=1e-6, rtol=2e-6)


def test_gates_far_from_zero_are_neither_infinite_nor_lost() -> None:
    gates = torch.tensor([-1e30, -104.0, -88.0, -20.0, 0.0, 20.0, 88.0, 1e30] * 2)
    up = torch.ones(16)
    told = step.silu_multiply(torch.cat((gates, up))[None])[0]
    torch.testing.assert_close(told, F.silu(gates), atol=1e-30, rtol=2e-6)


@pytest.mark.parametrize("width", [16, 64, 80, 128])
@pytest.mark.parametrize("queries", [1, 4])
def test_a_chain_attends_like_its_plain_twin(width: int, queries: int) -> None:
    lengths = [5, 37, 160]
    tokens = new_tokens(len(lengths), queries, width)
    caches = filled_cache(lengths, width), filled_cache(lengths, width)
    compiled = CompiledStepAttention(caches[0], len(lengths), queries, None)
    places = StepPlaces.of(caches[1], len(lengths), queries, torch.device("cpu"))
    plain = StepAttention(caches[1], places, queries, HEADS // GROUPS)
    assert compiled.positions_T.tolist() == plain.positions_T.tolist()
    torch.testing.assert_close(compiled(0, *tokens), plain(0, *tokens), atol=2e-6, rtol=2e-5)
    assert torch.equal(caches[0].keys[0], caches[1].keys[0])
    assert torch.equal(caches[0].values[0], caches[1].values[0])


@pytest.mark.parametrize("twin", [TreeAttention, ExactTreeAttention])
def test_a_tree_attends_like_its_plain_twins(twin: type[TreeAttention]) -> None:
    lengths = [5, 37]
    tokens = new_tokens(2, len(TREE) + 1, 64)
    caches = filled_cache(lengths, 64), filled_cache(lengths, 64)
    compiled = CompiledStepAttention(caches[0], 2, len(TREE) + 1, ancestry(2))
    places = StepPlaces.of(caches[1], 2, len(TREE) + 1, torch.device("cpu"))
    plain = twin(caches[1], places, ancestry(2), HEADS // GROUPS)
    assert compiled.positions_T.tolist() == plain.positions_T.tolist()
    torch.testing.assert_close(compiled(0, *tokens), plain(0, *tokens), atol=2e-6, rtol=2e-5)


def test_a_node_has_the_bits_of_a_chain_that_is_its_path() -> None:
    tokens = new_tokens(1, len(TREE) + 1, 64)
    in_tree = CompiledStepAttention(filled_cache([21], 64), 1, len(TREE) + 1, ancestry(1))(0, *tokens)
    path = ancestry(1)[0, -1].nonzero().flatten()
    along = CompiledStepAttention(filled_cache([21], 64), 1, len(path), None)
    chain = along(0, *new_tokens(1, len(TREE) + 1, 64, path))
    assert len(path) == 5
    assert torch.equal(in_tree[path], chain)


def test_a_row_of_any_length_has_the_same_bits_alone_and_beside_others() -> None:
    lengths = [590, 3, 411]
    tokens = new_tokens(3, 2, 64)
    together = CompiledStepAttention(filled_cache(lengths, 64), 3, 2, None)(0, *tokens)
    cache = filled_cache(lengths, 64)
    alone = CompiledStepAttention(cache, 1, 2, None)(0, *(tensor[:2] for tensor in tokens))
    assert torch.equal(alone, together[:2])
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        threaded = CompiledStepAttention(filled_cache(lengths, 64), 3, 2, None)(0, *tokens)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(threaded, together)


def test_likely_keys_far_above_the_others_take_all_the_weight() -> None:
    cache = filled_cache([40], 16)
    query, key, value = new_tokens(1, 1, 16)
    cache.keys[0][0, :, 7] = 1000.0 * query.view(GROUPS, -1, 16)[:, 0]
    out = CompiledStepAttention(cache, 1, 1, None)(0, query, key, value).view(HEADS, 16)
    for group in range(GROUPS):
        torch.testing.assert_close(out[group * HEADS // GROUPS], cache.values[0][0, group, 7])


@pytest.mark.parametrize("widths", [(20,), (64, 24)])
def test_widths_that_do_not_fill_vectors_take_the_plain_twins(widths: tuple[int, ...]) -> None:
    assert step.fits(torch.ones(1), 64)
    assert not step.fits(torch.ones(1), *widths)
    assert not step.fits(torch.ones(1, dtype=torch.bfloat16), 64)


def test_a_target_decodes_alike_with_compiled_code_and_without(
    tiny_decoders: tuple[TargetDecoder, TargetDecoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled, plain = tiny_decoders
    ids_T, lengths = torch.arange(1, 12), [7, 4]
    finals = []
    for decoder in (compiled, plain):
        if decoder is plain:
            monkeypatch.setattr(step, "fits", lambda *_: False)
        cache = decoder.new_cache(2, 40)
        _, final_TD = decoder.prefill(ids_T, lengths, cache, 0)
        _, chain_BQD = decoder.step(torch.tensor([[3, 4], [5, 6]]), cache)
        seen_BQQ = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]], dtype=torch.bool).repeat(2, 1, 1)
        _, tree_BQD = decoder.step(torch.tensor([[3, 4, 5]] * 2), cache, (), seen_BQQ)
        finals.append((final_TD, chain_BQD, tree_BQD))
    for one, other in zip(*finals, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


@pytest.fixture
def tiny_decoders(monkeypatch: pytest.MonkeyPatch) -> tuple[TargetDecoder, TargetDecoder]:
    """The same random target with compiled code and with the plain twins."""
    from dataclasses import replace

    from eagleray.targets import linear
    from eagleray.targets.weights import expected_shapes

    geometry = replace(geometry_of(16), num_layers=2, vocab_size=20)
    generator = torch.Generator().manual_seed(3)
    weights = {
        name: torch.randn(shape, generator=generator) * 0.2 if len(shape) > 1 else torch.ones(shape)
        for name, shape in expected_shapes(geometry).items()
    }
    compiled = TargetDecoder(geometry, weights)
    with monkeypatch.context() as patch:
        patch.setattr(step, "fits", lambda *_: False)
        patch.setattr(linear, "kernel_name", lambda _: "torch")
        return compiled, TargetDecoder(geometry, weights)

"""Slots: lengths tell what is there, and room comes with what is reserved."""

import torch

from eagleray.targets.geometry import TargetGeometry
from eagleray.targets.kv_cache import KVCache

GEOMETRY = TargetGeometry.from_config(
    {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_attention_heads": 2,
        "vocab_size": 4,
        "max_position_embeddings": 64,
    },
    (),
)


def new_cache(max_rows: int = 3, max_length: int = 20) -> KVCache:
    return KVCache(GEOMETRY, max_rows, max_length, torch.float32, torch.device("cpu"))


def test_slots_reach_to_a_whole_number_of_vectors():
    assert [new_cache(max_length=length).max_length for length in (1, 16, 17)] == [16, 16, 32]


def test_move_takes_the_committed_positions_and_empties_the_source():
    cache = new_cache()
    cache.reserve(3, 7)
    for layer in range(2):
        cache.keys[layer][2] = 1.0 + layer
        cache.values[layer][2] = 3.0 + layer
    cache.advance(2, 5)
    cache.advance(2, 2)
    cache.advance(0, 9)
    cache.move(2, 0)
    assert cache.lengths == [7, 0, 0]
    for layer in range(2):
        assert (cache.keys[layer][0, :, :7] == 1.0 + layer).all()
        assert (cache.values[layer][0, :, :7] == 3.0 + layer).all()


def test_reset_forgets_one_row():
    cache = new_cache()
    cache.advance(0, 4)
    cache.advance(1, 5)
    cache.reset(0)
    assert cache.lengths == [0, 5, 0]


def sizes(cache: KVCache) -> tuple[int, int]:
    rows, _, length, _ = cache.values[1].shape
    return rows, length


def test_room_doubles_up_to_its_bounds_and_keeps_what_is_held():
    cache = new_cache(max_rows=5, max_length=100)
    assert sizes(cache) == (0, 0)
    cache.reserve(2, 20)
    assert sizes(cache) == (2, 32)
    cache.keys[1][1, :, :20] = 7.0
    cache.reserve(1, 32)
    assert sizes(cache) == (2, 32)
    cache.reserve(3, 33)
    assert sizes(cache) == (4, 64)
    cache.reserve(5, 100)
    assert sizes(cache) == (5, 112)
    assert (cache.keys[1][1, :, :20] == 7.0).all()
    assert cache.keys[1].sum() == 7.0 * 20 * GEOMETRY.num_kv_heads * GEOMETRY.head_dim


def test_room_is_traded_between_rows_and_positions_within_the_bound():
    cache = KVCache(GEOMETRY, 8, 200, torch.float32, torch.device("cpu"), max_positions=200)
    cache.reserve(1, 100)
    cache.keys[1][0, :, :5] = 7.0
    cache.advance(0, 5)
    assert sizes(cache) == (1, 112)
    cache.reserve(3, 40)
    assert sizes(cache) == (3, 64)
    cache.reserve(1, 90)
    assert sizes(cache) == (1, 192)
    assert (cache.keys[1][0, :, :5] == 7.0).all()


def test_what_a_row_holds_can_be_copied_into_another():
    cache = new_cache()
    cache.reserve(2, 8)
    for layer in range(2):
        cache.keys[layer][0, :, :8] = torch.arange(8.0)[:, None] + layer
        cache.values[layer][0, :, :8] = -torch.arange(8.0)[:, None]
    cache.advance(0, 8)
    held = cache.read(0, 2, 5)
    assert held.shape == (2, 2, GEOMETRY.num_kv_heads, 3, GEOMETRY.head_dim)
    cache.advance(1, 1)
    cache.append(1, held)
    assert cache.lengths == [8, 4, 0]
    assert cache.keys[1][1, 0, 1:4, 0].tolist() == [3.0, 4.0, 5.0]
    assert cache.values[0][1, 0, 1:4, 0].tolist() == [-2.0, -3.0, -4.0]

"""The decoder is held to transformers, and a row to itself in any company."""

import pytest
import torch

from eagleray.errors import ArtifactError, ConfigError
from eagleray.speculation.trees import TokenTree
from eagleray.targets.decoder import TargetDecoder

LENGTHS = [40, 17, 1]
LAYERS = (0, 2, 3)


def random_ids(*shape: int) -> torch.Tensor:
    return torch.randint(0, 160, shape, generator=torch.Generator().manual_seed(3))


def load(twin, **settings) -> TargetDecoder:
    return TargetDecoder.load(twin.folder, torch.float32, **settings)


def reference_outputs(twin, ids_BT):
    with torch.no_grad():
        output = twin.reference(ids_BT, output_hidden_states=True)
    return output.logits, output.hidden_states


def test_whole_sequences_match_transformers(twin):
    ids_BT = random_ids(3, 40)
    logits_BTV, hidden_states = reference_outputs(twin, ids_BT)
    decoder = load(twin)
    features_BTLD, final_BTD = decoder.capture(ids_BT, torch.tensor(LENGTHS), LAYERS)
    for row, length in enumerate(LENGTHS):
        ours = decoder.logits(final_BTD[row, :length])
        torch.testing.assert_close(ours, logits_BTV[row, :length], atol=1e-4, rtol=0)
        # The last entry of hidden_states is already normed, so the last layer is judged by the logits.
        for place, layer in enumerate(LAYERS[:-1]):
            theirs = hidden_states[layer + 1][row, :length]
            torch.testing.assert_close(features_BTLD[row, :length, place], theirs, atol=1e-4, rtol=0)
        assert not features_BTLD[row, length:].any()
        assert not final_BTD[row, length:].any()


def test_cached_steps_match_transformers(twin):
    ids_BT = random_ids(3, 40)
    logits_BTV, hidden_states = reference_outputs(twin, ids_BT)
    decoder = load(twin)
    prompts = [30, 9, 1]
    cache = decoder.new_cache(max_rows=3, max_length=40)
    ids_T = torch.cat([ids_BT[row, :length] for row, length in enumerate(prompts)])
    decoder.prefill(ids_T, prompts, cache, 0)
    for queries in (1, 4, 2):
        starts = cache.lengths[:3]
        ids_BQ = torch.stack([ids_BT[row, start : start + queries] for row, start in enumerate(starts)])
        features_BQLD, final_BQD = decoder.step(ids_BQ, cache, (1,))
        ours = decoder.logits(final_BQD)
        for row, start in enumerate(starts):
            span = slice(start, start + queries)
            torch.testing.assert_close(ours[row], logits_BTV[row, span], atol=1e-4, rtol=0)
            torch.testing.assert_close(
                features_BQLD[row, :, 0], hidden_states[2][row, span], atol=1e-4, rtol=0
            )
            cache.advance(row, queries)


def test_rejected_positions_are_overwritten(llama):
    ids = random_ids(20)
    decoder = load(llama)
    straight, detour = decoder.new_cache(1, 32), decoder.new_cache(1, 32)
    for cache in (straight, detour):
        decoder.prefill(ids[:10], [10], cache, 0)
    decoder.step((ids[None, 10:16] + 1) % 160, detour)
    expected = decoder.step(ids[None, 10:13], straight)
    seen = decoder.step(ids[None, 10:13], detour)
    assert torch.equal(seen[1], expected[1])


def test_a_moved_row_goes_on_where_it_was(llama):
    ids = random_ids(2, 12)
    decoder = load(llama, batch_invariant=True)
    cache = decoder.new_cache(2, 16)
    decoder.prefill(ids[:, :10].flatten(), [10, 10], cache, 0)
    _, expected = decoder.step(ids[:, 10:], cache)
    cache.move(1, 0)
    _, seen = decoder.step(ids[1:, 10:], cache)
    assert torch.equal(seen[0], expected[1])
    assert cache.lengths == [10, 0]


# The anchor's children are 1 and 2; 2 goes on with 3 and 4, 4 with 5, and 1 with 6.
PARENTS = [-1, -1, 1, 1, 3, 0]
PATHS = [[0, 1, 6], [0, 2, 3], [0, 2, 4, 5]]


def tree_step(decoder, cache, ids_BQ):
    parents_BN = torch.tensor([PARENTS] * len(ids_BQ))
    return decoder.step(ids_BQ, cache, (1,), TokenTree(ids_BQ[:, 1:], parents_BN).ancestry())


@pytest.mark.parametrize("exact", [False, True])
def test_a_node_of_a_tree_sees_its_own_path(llama, exact):
    """As if the path were a chain: bit by bit if the decoder is batch invariant, else to rounding."""
    ids_BT, ids_BQ = random_ids(3, 30), random_ids(3, 7)
    decoder = load(llama, batch_invariant=exact)
    lengths = [20, 7, 30]
    prompts_T = torch.cat([ids_BT[row, :length] for row, length in enumerate(lengths)])

    def prefilled():
        cache = decoder.new_cache(3, 64)
        decoder.prefill(prompts_T, lengths, cache, 0)
        return cache

    branched = tree_step(decoder, prefilled(), ids_BQ)
    for path in PATHS:
        chained = decoder.step(ids_BQ[:, path], prefilled(), (1,))
        for tree_BQ, chain_BQ in zip(branched, chained, strict=True):
            if exact:
                assert torch.equal(tree_BQ[:, path], chain_BQ)
            else:
                torch.testing.assert_close(tree_BQ[:, path], chain_BQ, atol=1e-4, rtol=0)


@pytest.mark.parametrize("exact", [False, True])
def test_an_accepted_path_becomes_part_of_its_row(llama, exact):
    """Rows keep paths of their own, one of them shorter; all go on as if they had never branched."""
    ids_BT, ids_BQ, next_B1 = random_ids(3, 9), random_ids(3, 7), random_ids(3, 1)
    decoder = load(llama, batch_invariant=exact)
    branched, chained = decoder.new_cache(3, 64), decoder.new_cache(3, 64)
    for cache in (branched, chained):
        decoder.prefill(ids_BT.flatten(), [9, 9, 9], cache, 0)
    tree_step(decoder, branched, ids_BQ)
    paths_BA = torch.tensor([[0, 2, 4, 5], [0, 1, 6, 6], [0, 2, 2, 2]])
    branched.compact(paths_BA)
    decoder.step(ids_BQ.gather(1, paths_BA), chained)
    for cache in (branched, chained):
        for row, kept in enumerate([4, 3, 2]):
            cache.advance(row, kept)
    (_, seen_B1D), (_, expected_B1D) = (decoder.step(next_B1, cache) for cache in (branched, chained))
    if exact:
        assert torch.equal(seen_B1D, expected_B1D)
    torch.testing.assert_close(seen_B1D, expected_B1D, atol=1e-4, rtol=0)


def test_growth_of_the_cache_leaves_the_bits_of_running_rows_alone(llama):
    ids = random_ids(3, 60)
    decoder = load(llama, batch_invariant=True)
    alone, grown = decoder.new_cache(1, 64), decoder.new_cache(3, 64)
    alone.reserve(1, 64)
    for cache in (alone, grown):
        decoder.prefill(ids[0, :10], [10], cache, 0)
    sizes = set()
    for position in range(10, 30):
        if position == 14:
            decoder.prefill(ids[1:, :40].flatten(), [40, 40], grown, 1)
        rows = 1 if position < 14 else 3
        _, expected = decoder.step(ids[:1, position : position + 1], alone)
        _, seen = decoder.step(ids[:rows, position : position + 1], grown)
        assert torch.equal(seen[0], expected[0])
        alone.advance(0, 1)
        for row in range(rows):
            grown.advance(row, 1)
        sizes.add(tuple(grown.keys[0].shape[::2]))
    assert sizes == {(1, 16), (3, 48), (3, 64)}


def test_a_row_has_the_same_bits_in_any_company(llama):
    """Alone, among other rows, and as one of several verified positions."""
    ids_BT = random_ids(5, 60)
    decoder = load(llama, batch_invariant=True)
    lengths = [50, 20, 33, 1, 44]
    crowd = decoder.new_cache(5, 64)
    decoder.prefill(torch.cat([ids_BT[row, :n] for row, n in enumerate(lengths)]), lengths, crowd, 0)
    ids_BQ = torch.stack([ids_BT[row, n : n + 6] for row, n in enumerate(lengths)])
    _, together_BQD = decoder.step(ids_BQ, crowd)
    for row, length in enumerate(lengths):
        alone = decoder.new_cache(1, 64)
        decoder.prefill(ids_BT[row, :length], [length], alone, 0)
        for query in range(6):
            _, final_11D = decoder.step(ids_BQ[row : row + 1, query : query + 1], alone)
            alone.advance(0, 1)
            assert torch.equal(final_11D[0, 0], together_BQD[row, query])
    assert torch.equal(decoder.logits(together_BQD)[0, :1], decoder.logits(together_BQD[0, :1]))


def test_no_features_are_computed_unless_asked(llama):
    features_BTLD, final_BTD = load(llama).capture(random_ids(2, 5), torch.tensor([5, 3]), ())
    assert features_BTLD.shape == (2, 5, 0, 64)
    assert final_BTD.shape == (2, 5, 64)


def test_captured_features_can_enter_a_training_step(llama):
    features_BTLD, _ = load(llama).capture(random_ids(1, 4), torch.tensor([4]), (1,))
    weight = torch.ones(64, requires_grad=True)
    (features_BTLD * weight).sum().backward()
    assert weight.grad is not None


def test_bfloat16_follows_float32(llama):
    ids_BT = random_ids(1, 12)
    exact = load(llama)
    coarse = TargetDecoder.load(llama.folder, torch.bfloat16)
    lengths_B = torch.tensor([12])
    _, exact_BTD = exact.capture(ids_BT, lengths_B, ())
    _, coarse_BTD = coarse.capture(ids_BT, lengths_B, ())
    assert coarse_BTD.dtype == torch.bfloat16
    torch.testing.assert_close(coarse_BTD.float(), exact_BTD, atol=0.15, rtol=0)


def test_a_sliding_window_bounds_what_may_be_asked(make_twin, tmp_path):
    decoder = load(make_twin(tmp_path, "Mistral", sliding_window=16))
    decoder.capture(random_ids(1, 16), torch.tensor([16]), ())
    with pytest.raises(ConfigError, match=r"17 tokens.*over 16"):
        decoder.capture(random_ids(1, 17), torch.tensor([17]), ())
    cache = decoder.new_cache(1, 32)
    with pytest.raises(ConfigError, match="over 16"):
        decoder.prefill(random_ids(17), [17], cache, 0)
    decoder.prefill(random_ids(15), [15], cache, 0)
    decoder.step(random_ids(1, 3), cache)
    cache.advance(0, 1)
    with pytest.raises(ConfigError, match="over 16"):
        decoder.step(random_ids(1, 1), cache)


def test_unknown_activation_is_refused(make_twin, tmp_path):
    with pytest.raises(ArtifactError, match="hidden_act 'gelu'"):
        load(make_twin(tmp_path, "Llama", hidden_act="gelu"))

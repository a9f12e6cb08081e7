"""Batches know padding by lengths and supervision by spans."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from eagleray.corpus.sample import Sample
from eagleray.errors import ConfigError
from eagleray.targets.feature_store import FeatureStore
from eagleray.training.collate import collate
from eagleray.training.features import ColocatedFeatures, StoredFeatures

CPU = torch.device("cpu")


class FakeTarget:
    """Features that spell the position, and remember nothing."""

    def capture(self, ids_BT: Tensor, lengths_B: Tensor, layers: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        positions = torch.arange(ids_BT.shape[1]).float()
        features = torch.stack([positions + 16 * layer for layer in layers], -1)[None, :, :, None]
        return features.expand(len(ids_BT), -1, -1, 2).clone(), torch.ones(*ids_BT.shape, 2)


def sample(name: str, ids: Sequence[int], *spans: tuple[int, int]) -> Sample:
    return Sample(
        sample_id=name,
        input_ids=tuple(ids),
        supervised=spans,
        prompt_tokens=1,
        answer_tokens=1,
        finish_reason="stop",
        answer_origin="target",
        category="c",
        source="s",
    )


def test_the_end_token_is_supervised_even_though_padding_could_look_like_it() -> None:
    rows = [sample("a", [5, 6, 7, 2], (2, 4)), sample("b", [5, 2, 8, 2, 9, 2], (1, 2), (4, 6))]
    batch = collate(rows, ColocatedFeatures(FakeTarget(), (0,)), max_length=99, seed=3, device=CPU)
    assert batch.lengths_B.tolist() == [4, 6]
    assert batch.supervised_BT.int().tolist() == [[0, 0, 1, 1, 0, 0], [0, 1, 0, 0, 1, 1]]
    assert batch.ids_BT[1].tolist() == [5, 2, 8, 2, 9, 2]
    assert batch.seed == 3


def test_a_cut_sequence_gets_no_invented_end() -> None:
    rows = [sample("a", [5, 6, 7, 8, 2], (2, 5))]
    batch = collate(rows, ColocatedFeatures(FakeTarget(), (0,)), max_length=4, seed=0, device=CPU)
    assert batch.ids_BT.tolist() == [[5, 6, 7, 8]]
    assert batch.supervised_BT.int().tolist() == [[0, 0, 1, 1]]


@pytest.mark.parametrize("cache", [True, False])
def test_stored_features_equal_colocated_ones_wherever_they_exist(tmp_path: Path, cache: bool) -> None:
    rows = [sample("aa1", range(5), (2, 5)), sample("bb2", range(9), (3, 9))]
    store = FeatureStore(tmp_path, (1, 4, 5))
    for row in rows:
        ids_BT = torch.tensor([row.input_ids[:-1]])
        features, final = FakeTarget().capture(ids_BT, torch.tensor([ids_BT.shape[1]]), (1, 4, 5))
        store.put(row.sample_id, row.input_ids, features[0], final[0])
    stored = StoredFeatures(store, (1, 5), cache=cache)
    for max_length in (99, 6, 99):
        batch = collate(rows, stored, max_length=max_length, seed=0, device=CPU)
        live = collate(
            rows, ColocatedFeatures(FakeTarget(), (1, 5)), max_length=max_length, seed=0, device=CPU
        )
        for index, row in enumerate(rows):
            known = min(max_length, len(row.input_ids) - 1)
            assert torch.equal(batch.features_BTLD[index, :known], live.features_BTLD[index, :known])
            assert not batch.features_BTLD[index, known:].any()
            assert torch.equal(batch.final_BTD[index, :known], live.final_BTD[index, :known])


def test_a_store_without_a_tapped_layer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"taps \[3\] too"):
        StoredFeatures(FeatureStore(tmp_path, (1, 4)), (1, 3), cache=False)


def test_spans_of_samples_become_masks(samples: Callable[..., list[Sample]]) -> None:
    rows = samples((2, 3), (4, 1))
    batch = collate(rows, ColocatedFeatures(FakeTarget(), (0,)), max_length=99, seed=0, device=CPU)
    assert batch.supervised_BT.sum(1).tolist() == [3, 1]

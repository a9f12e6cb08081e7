"""Batches know padding by lengths and supervision by spans."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from eagleray.corpus.sample import Sample
from eagleray.errors import ConfigError
from eagleray.settings import validate
from eagleray.targets.feature_store import FeatureStore
from eagleray.training.collate import collate
from eagleray.training.config import TrainingConfig
from eagleray.training.features import ColocatedFeatures, FeatureSource, StoredFeatures
from eagleray.training.rows import TrainingRow, TrainingRows, first_row

CPU = torch.device("cpu")


def clipped(rows: Sequence[Sample], max_length: int = 99) -> list[TrainingRow]:
    return [first_row(row, max_length) for row in rows]


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
    batch = collate(clipped(rows), ColocatedFeatures(FakeTarget(), (0,)), seed=3, device=CPU)
    assert batch.lengths_B.tolist() == [4, 6]
    assert batch.supervised_BT.int().tolist() == [[0, 0, 1, 1, 0, 0], [0, 1, 0, 0, 1, 1]]
    assert batch.ids_BT[1].tolist() == [5, 2, 8, 2, 9, 2]
    assert batch.seed == 3


def test_a_cut_sequence_gets_no_invented_end() -> None:
    rows = [sample("a", [5, 6, 7, 8, 2], (2, 5))]
    batch = collate(clipped(rows, 4), ColocatedFeatures(FakeTarget(), (0,)), seed=0, device=CPU)
    assert batch.ids_BT.tolist() == [[5, 6, 7, 8]]
    assert batch.supervised_BT.int().tolist() == [[0, 0, 1, 1]]


@pytest.mark.parametrize("cache_bytes", [0, 500, 2**20])
def test_stored_features_equal_colocated_ones_wherever_they_exist(tmp_path: Path, cache_bytes: int) -> None:
    rows = [sample("aa1", range(5), (2, 5)), sample("bb2", range(9), (3, 9))]
    store = FeatureStore(tmp_path, (1, 4, 5))
    for row in rows:
        ids_BT = torch.tensor([row.input_ids[:-1]])
        features, final = FakeTarget().capture(ids_BT, torch.tensor([ids_BT.shape[1]]), (1, 4, 5))
        store.put(row.sample_id, row.input_ids, features[0], final[0])
    stored = StoredFeatures(store, (1, 5), cache_bytes=cache_bytes)
    for max_length in (99, 6, 99):
        batch = collate(clipped(rows, max_length), stored, seed=0, device=CPU)
        live = collate(clipped(rows, max_length), ColocatedFeatures(FakeTarget(), (1, 5)), seed=0, device=CPU)
        for index, row in enumerate(rows):
            known = min(max_length, len(row.input_ids) - 1)
            assert torch.equal(batch.features_BTLD[index, :known], live.features_BTLD[index, :known])
            assert not batch.features_BTLD[index, known:].any()
            assert torch.equal(batch.final_BTD[index, :known], live.final_BTD[index, :known])


def test_a_store_without_a_tapped_layer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"taps \[3\] too"):
        StoredFeatures(FeatureStore(tmp_path, (1, 4)), (1, 3), cache_bytes=0)


def test_spans_of_samples_become_masks(samples: Callable[..., list[Sample]]) -> None:
    rows = samples((2, 3), (4, 1))
    batch = collate(clipped(rows), ColocatedFeatures(FakeTarget(), (0,)), seed=0, device=CPU)
    assert batch.supervised_BT.sum(1).tolist() == [3, 1]


@pytest.mark.parametrize("stored", [True, False])
def test_a_window_has_the_ids_masks_and_features_of_its_place_in_the_sample(
    tmp_path: Path, stored: bool
) -> None:
    whole = sample("aa1", range(100, 140), (10, 38))
    short = sample("bb2", range(50, 59), (3, 9))
    source: FeatureSource = ColocatedFeatures(FakeTarget(), (1, 5))
    if stored:
        store = FeatureStore(tmp_path, (1, 5), torch.float32)
        for row in (whole, short):
            ids_BT = torch.tensor([row.input_ids[:-1]])
            features, final = FakeTarget().capture(ids_BT, torch.tensor([ids_BT.shape[1]]), (1, 5))
            store.put(row.sample_id, row.input_ids, features[0], final[0])
        source = StoredFeatures(store, (1, 5), cache_bytes=2**20)
    rows = TrainingRows([whole, short], TrainingConfig(max_length=16, long_samples="window"))
    assert [(row.start, row.end) for row in rows] == [(0, 16), (12, 28), (24, 40), (0, 9)]
    batch = collate(rows, source, seed=0, device=CPU)
    assert batch.ids_BT[1].tolist() == list(range(112, 128))
    assert batch.lengths_B.tolist() == [16, 16, 16, 9]
    assert batch.supervised_BT.sum(1).tolist() == [6, 12, 10, 6]
    assert batch.supervised_BT[1].nonzero().flatten().tolist() == list(range(4, 16))
    # The fake target's features spell the position in the whole sample.
    known = 15 if stored else 16
    assert batch.features_BTLD[1, :, 0, 0].tolist() == [16 + position for position in range(12, 28)]
    assert batch.features_BTLD[2, :known, 0, 0].tolist() == [
        16 + position for position in range(24, 24 + known)
    ]


def test_windows_too_short_for_context_are_refused() -> None:
    with pytest.raises(ConfigError, match="max_length is 7; windows of a sample need at least 8 tokens"):
        validate(TrainingConfig, {"max_length": 7, "long_samples": "window"}, "training")

"""The draft vocabulary: which ids it keeps, and what it refuses to load."""

from pathlib import Path

import pytest
import torch

from eagleray.drafters.blocks.draft_vocab import DraftVocabulary
from eagleray.errors import ArtifactError, ConfigError

ORIGIN = Path("folder")
D2T = torch.tensor([0, 1, 3, 6])
T2D = torch.tensor([True, False, True, False, False, True, False, False, False, True])


def test_keeps_the_most_counted_ids_in_ascending_order() -> None:
    vocabulary = DraftVocabulary.from_counts(torch.tensor([9, 0, 5, 0, 0, 7, 1, 0, 0, 8]), 4)
    assert vocabulary.ids_U.tolist() == [0, 2, 5, 9]
    assert vocabulary.d2t_U.tolist() == [0, 1, 3, 6]
    assert vocabulary.t2d_V.nonzero().flatten().tolist() == [0, 2, 5, 9]


def test_fills_up_with_low_ids_when_too_few_occur() -> None:
    assert DraftVocabulary.from_counts(torch.tensor([0, 0, 0, 3]), 3).ids_U.tolist() == [0, 1, 3]


def test_size_beyond_the_target_is_refused() -> None:
    with pytest.raises(ConfigError, match="draft_vocab_size is 5"):
        DraftVocabulary.from_counts(torch.zeros(4), 5)


def test_offsets_give_back_the_ids() -> None:
    vocabulary = DraftVocabulary.from_tensors({"d2t": D2T, "t2d": T2D}, 10, ORIGIN)
    assert vocabulary.ids_U.tolist() == [0, 2, 5, 9]


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"t2d": T2D}, "no tensor 'd2t'"),
        ({"d2t": D2T}, "no tensor 't2d'"),
        ({"d2t": torch.zeros(4, dtype=torch.int64), "t2d": T2D}, "disagree"),
        ({"d2t": torch.tensor([0, 2, 5, 9]), "t2d": T2D}, "disagree"),
        ({"d2t": torch.zeros(4, dtype=torch.int64), "t2d": torch.zeros(10, dtype=torch.bool)}, "disagree"),
        ({"d2t": D2T, "t2d": T2D[:9]}, "another target"),
    ],
    ids=["no d2t", "no t2d", "zeroed d2t", "ids instead of offsets", "both zeroed", "other target"],
)
def test_a_lost_or_zeroed_map_is_an_error(tensors: dict[str, torch.Tensor], message: str) -> None:
    with pytest.raises(ArtifactError, match=message):
        DraftVocabulary.from_tensors(tensors, 10, ORIGIN)

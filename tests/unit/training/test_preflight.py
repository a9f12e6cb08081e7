"""What preflight lets through, counts and refuses."""

from collections.abc import Callable

import pytest

from eagleray.corpus.sample import Sample
from eagleray.errors import ConfigError, DataError
from eagleray.targets.geometry import TargetGeometry
from eagleray.training.preflight import check_feature_layers, check_prompt_lengths, check_samples

MakeSamples = Callable[..., list[Sample]]
GEOMETRY = TargetGeometry.from_config(
    {
        "model_type": "llama",
        "num_hidden_layers": 4,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_attention_heads": 2,
        "vocab_size": 12,
        "max_position_embeddings": 64,
    },
    (2,),
)


@pytest.mark.parametrize("layers", [(-1, 1), (1, 4), (2, 1), (1, 1)])
def test_layers_that_do_not_exist_or_do_not_ascend_are_refused(layers: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=r"taps is .*; expected strictly increasing layers from 0 to 3"):
        check_feature_layers(layers, GEOMETRY, "taps")


def test_existing_ascending_layers_pass() -> None:
    check_feature_layers((0, 2, 3), GEOMETRY, "taps")


def test_prompts_that_leave_no_room_for_answers_are_refused_before_distilling() -> None:
    check_prompt_lengths([20] * 19 + [50], 12, 32, "length")
    with pytest.raises(DataError, match=r"2 of 20 sequences .*95th percentile 62.*length = 32.*at least 62"):
        check_prompt_lengths([20] * 18 + [50, 50], 12, 32, "length")


def test_samples_that_cannot_train_are_dropped_and_counted(samples: MakeSamples) -> None:
    rows = samples(*[(2, 6)] * 30, (20, 4), (3, 1))
    kept, report = check_samples(rows, GEOMETRY, 16, "length")
    assert [sample.sample_id for sample in kept] == [f"sample-{i}" for i in range(30)]
    assert report.model_dump() == {
        "samples": 32,
        "kept": 30,
        "cut": 0,
        "dropped": 2,
        "supervised_tokens": 180,
        "supervised_tokens_lost": 5,
    }


def test_a_cut_answer_counts_as_cut_and_its_lost_tokens_as_lost(samples: MakeSamples) -> None:
    _, report = check_samples(samples(*[(2, 6)] * 30, (10, 10)), GEOMETRY, 16, "length")
    assert (report.cut, report.supervised_tokens, report.supervised_tokens_lost) == (1, 186, 4)


def test_too_many_cut_samples_are_refused(samples: MakeSamples) -> None:
    with pytest.raises(DataError, match=r"3 of 30 sequences .* longer than length = 16"):
        check_samples(samples(*[(2, 6)] * 27, *[(15, 9)] * 3), GEOMETRY, 16, "length")


def test_a_dataset_without_a_trainable_token_is_refused(samples: MakeSamples) -> None:
    with pytest.raises(DataError, match="None of the 2 samples"):
        check_samples(samples((3, 1), (4, 1)), GEOMETRY, 16, "length")


def test_ids_of_another_tokenizer_are_refused(samples: MakeSamples) -> None:
    wide = samples((2, 6))[0]
    foreign = Sample(
        sample_id="x",
        input_ids=(1, 12, 3),
        supervised=((1, 3),),
        prompt_tokens=1,
        answer_tokens=2,
        finish_reason="stop",
        category="c",
        source="s",
    )
    with pytest.raises(DataError, match="Sample x holds id 12; expected ids below 12"):
        check_samples([wide, foreign], GEOMETRY, 16, "length")


def test_no_samples_at_all_are_refused() -> None:
    with pytest.raises(DataError, match="no sequence to train on"):
        check_samples([], GEOMETRY, 16, "length")

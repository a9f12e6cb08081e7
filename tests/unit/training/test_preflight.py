"""What preflight lets through, counts and refuses."""

from collections.abc import Callable

import pytest

from eagleray.corpus.accounting import Extent, Tally
from eagleray.corpus.sample import Sample
from eagleray.errors import ConfigError, DataError
from eagleray.targets.config import FeatureStoreConfig
from eagleray.targets.geometry import TargetGeometry
from eagleray.training.config import TrainingConfig
from eagleray.training.preflight import (
    check_feature_budget,
    check_feature_layers,
    check_planned,
    check_samples,
)

MakeSamples = Callable[..., list[Sample]]
CONFIG = TrainingConfig(max_length=16)


def extent(category: str, prompt: int, answer: int) -> Extent:
    """A row of a prompt and a supervised answer."""
    return Extent(category=category, tokens=prompt + answer, supervised=((prompt, prompt + answer),))


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
    def planned(*prompt_tokens: int) -> list[Extent]:
        return [extent("code" if tokens < 40 else "logs", tokens, 12) for tokens in prompt_tokens]

    check_planned(planned(*[20] * 19, 50), CONFIG.model_copy(update={"max_length": 32}), "training")
    with pytest.raises(DataError) as caught:
        check_planned(planned(*[20] * 18, 50, 50), CONFIG.model_copy(update={"max_length": 32}), "training")
    message = str(caught.value)
    assert message.startswith("With answers as long as they may become, training.max_length = 32 keeps 90.0%")
    assert "expected at least 95.0% (training.min_supervised_kept_ratio)" in message
    assert "24 are in 2 sequences that could not train at all" in message
    assert "worst is category logs with 0.0% kept" in message
    assert "median 32, p95 62, p99 62, longest 62" in message
    assert "95 %: 56, 99 %: 61, 100 %: 62" in message


def test_samples_that_cannot_train_are_dropped_and_counted(samples: MakeSamples) -> None:
    rows = samples(*[(2, 6)] * 30, (20, 4), (3, 1))
    kept, found = check_samples(rows, GEOMETRY, CONFIG, "training")
    assert [sample.sample_id for sample in kept] == [f"sample-{i}" for i in range(30)]
    assert found.total == Tally(whole_rows=30, lost_rows=2, kept_tokens=180, lost_tokens=5)
    assert found.lost_rows_by_reason == {"no supervised tokens": 1, "no supervised token after another": 1}


def test_a_cut_answer_counts_as_clipped(samples: MakeSamples) -> None:
    _, found = check_samples(samples(*[(2, 6)] * 30, (10, 10)), GEOMETRY, CONFIG, "training")
    assert found.total == Tally(whole_rows=30, clipped_rows=1, kept_tokens=186, clipped_tokens=4)


def test_the_gate_is_on_tokens_not_on_rows(samples: MakeSamples) -> None:
    """One long sequence of thirty can hold a third of what there is to learn."""
    rows = samples(*[(2, 6)] * 29, (2, 80))
    with pytest.raises(DataError, match=r"training.max_length = 16 keeps 74\.0% of the supervised tokens"):
        check_samples(rows, GEOMETRY, CONFIG, "training")
    lenient = CONFIG.model_copy(update={"min_supervised_kept_ratio": 0.7})
    assert len(check_samples(rows, GEOMETRY, lenient, "training")[0]) == 30


@pytest.mark.parametrize("ratio", [0.0, 0.95])
def test_a_dataset_without_an_anchor_is_refused_whatever_the_gate(samples: MakeSamples, ratio: float) -> None:
    config = CONFIG.model_copy(update={"min_supervised_kept_ratio": ratio})
    with pytest.raises(DataError, match=r"training\.max_length = 16"):
        check_samples(samples((3, 1), (4, 1)), GEOMETRY, config, "training")


def test_features_beyond_the_budget_or_the_disk_are_refused_with_the_numbers() -> None:
    tokens, config = 2**20, FeatureStoreConfig(budget_gib=2.0)
    assert check_feature_budget(tokens, 2048, config, free_bytes=2**40) == 2**31
    with pytest.raises(
        DataError, match=r"2\.25 GiB \(1,048,576 tokens of 2,304 bytes as bfloat16\); .*budget_gib"
    ):
        check_feature_budget(tokens, 2304, config, free_bytes=2**40)
    with pytest.raises(DataError, match=r"the disk allows 1\.00 GiB"):
        check_feature_budget(tokens, 2048, config, free_bytes=2**30)


def test_ids_of_another_tokenizer_are_refused(samples: MakeSamples) -> None:
    wide = samples((2, 6))[0]
    foreign = Sample(
        sample_id="x",
        input_ids=(1, 12, 3),
        supervised=((1, 3),),
        prompt_tokens=1,
        answer_tokens=2,
        finish_reason="stop",
        answer_origin="target",
        category="c",
        source="s",
    )
    with pytest.raises(DataError, match="Sample x holds id 12; expected ids below 12"):
        check_samples([wide, foreign], GEOMETRY, CONFIG, "training")


def test_no_samples_at_all_are_refused() -> None:
    with pytest.raises(DataError, match="no sequence to train on"):
        check_samples([], GEOMETRY, CONFIG, "training")

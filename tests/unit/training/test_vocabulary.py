from eagleray.corpus.sample import Sample
from eagleray.training.vocabulary import supervised_counts


def test_only_supervised_tokens_are_counted() -> None:
    sample = Sample(
        sample_id="a",
        input_ids=(0, 1, 1, 4, 4, 2, 1),
        supervised=((2, 4), (5, 6)),
        prompt_tokens=2,
        answer_tokens=3,
        finish_reason="stop",
        answer_origin="target",
        category="c",
        source="s",
    )
    assert supervised_counts([sample, sample], 6).tolist() == [0, 2, 2, 0, 2, 0]

"""Checks before anything expensive: each fails with what to change, in seconds and without a GPU."""

import itertools
from collections.abc import Sequence

from eagleray.corpus.sample import Sample
from eagleray.errors import ConfigError, DataError
from eagleray.settings import Settings
from eagleray.targets.geometry import TargetGeometry

CUT_SHARE = 0.05
"""Share of sequences that may exceed max_length before preflight refuses: above it, p95 does."""


class SampleReport(Settings):
    """What is left of a dataset at a training length."""

    samples: int
    kept: int
    cut: int
    """Kept, but longer than the training length."""
    dropped: int
    """Without a trainable token after the cut."""
    supervised_tokens: int
    """In the kept samples."""
    supervised_tokens_lost: int
    """Cut off, or in dropped samples."""


def check_feature_layers(layers: Sequence[int], geometry: TargetGeometry, setting: str) -> None:
    """Check that tapped layers exist and ascend.

    Args:
        setting: Dotted name of the setting that holds them.

    Raises:
        ConfigError: A layer is negative, beyond the last, or not above the one before it.
    """
    valid = all(0 <= layer < geometry.num_layers for layer in layers)
    ascending = all(low < high for low, high in itertools.pairwise(layers))
    if not (valid and ascending):
        raise ConfigError(
            f"{setting} is {list(layers)}; expected strictly increasing layers from 0 to "
            f"{geometry.num_layers - 1}: id i is the output of layer i, counted from 0."
        )


def check_prompt_lengths(
    prompt_tokens: Sequence[int], max_new_tokens: int, max_length: int, setting: str
) -> None:
    """Check, before distilling, that prompts and the longest answers fit the training length.

    Raises:
        DataError: More than a twentieth of them would be cut.
    """
    _check_p95(sorted(tokens + max_new_tokens for tokens in prompt_tokens), max_length, setting)


def check_samples(
    samples: Sequence[Sample], geometry: TargetGeometry, max_length: int, setting: str
) -> tuple[list[Sample], SampleReport]:
    """Check a distilled dataset, and drop samples that cannot train a drafter.

    A drafter learns from a supervised token that follows another one, so a sample needs two in a row.

    Returns:
        The samples to train on, and the account of all of them.

    Raises:
        DataError: An id is outside the target vocabulary, nothing is left, or too many are cut.
    """
    check_vocabulary(samples, geometry)
    _check_p95(sorted(len(sample.input_ids) for sample in samples), max_length, setting)
    kept = [sample for sample in samples if trainable_tokens(sample, max_length) > 0]
    total = sum(sample.supervised_tokens() for sample in samples)
    left = sum(sample.supervised_tokens(max_length) for sample in kept)
    report = SampleReport(
        samples=len(samples),
        kept=len(kept),
        cut=sum(len(sample.input_ids) > max_length for sample in kept),
        dropped=len(samples) - len(kept),
        supervised_tokens=left,
        supervised_tokens_lost=total - left,
    )
    if not kept:
        raise DataError(
            f"None of the {len(samples)} samples has two supervised tokens in a row within {max_length} "
            f"tokens, so there is nothing to train on. Raise {setting}, or distil longer answers with "
            "distil.max_new_tokens."
        )
    return kept, report


def check_vocabulary(samples: Sequence[Sample], geometry: TargetGeometry) -> None:
    """Check every id against the target's embedding.

    Raises:
        DataError: A sample holds an id that the target does not have.
    """
    for sample in samples:
        if max(sample.input_ids) >= geometry.vocab_size:
            raise DataError(
                f"Sample {sample.sample_id} holds id {max(sample.input_ids)}; expected ids below "
                f"{geometry.vocab_size}, the target vocabulary. It was made with another tokenizer: "
                "distil again."
            )


def trainable_tokens(sample: Sample, max_length: int) -> int:
    """Supervised tokens, within `max_length`, that follow a supervised token: what an anchor can predict."""
    return sum(max(0, min(end, max_length) - start - 1) for start, end in sample.supervised)


def _check_p95(sorted_lengths: Sequence[int], max_length: int, setting: str) -> None:
    if not sorted_lengths:
        raise DataError("There is no sequence to train on. Give prompts, or distil them again.")
    too_long = sum(length > max_length for length in sorted_lengths)
    if too_long > CUT_SHARE * len(sorted_lengths):
        p95 = sorted_lengths[min(len(sorted_lengths) - 1, int(0.95 * len(sorted_lengths)))]
        raise DataError(
            f"{too_long} of {len(sorted_lengths)} sequences (prompt and answer; 95th percentile {p95}) "
            f"are longer than {setting} = {max_length}. Set it to at least {p95}; to save memory lower "
            "training.micro_batch_size instead."
        )

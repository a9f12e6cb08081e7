"""Checks before anything expensive: each fails with what to change, in seconds and without a GPU."""

import itertools
from array import array
from collections.abc import Iterable, Sequence

from eagleray.corpus.accounting import (
    Extent,
    TruncationAccount,
    account,
    sample_extent,
)
from eagleray.corpus.packed import Chosen
from eagleray.corpus.sample import Sample
from eagleray.errors import ConfigError, DataError
from eagleray.targets.config import FeatureStoreConfig
from eagleray.targets.geometry import TargetGeometry
from eagleray.training.config import TrainingConfig
from eagleray.training.rows import windows_of


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


def check_planned(
    rows: Iterable[Extent], config: TrainingConfig, section: str, note: str = ""
) -> TruncationAccount:
    """Check, before distilling, that prompts and the longest answers fit the training length.

    Args:
        rows: Extents as planned: the true ones are never longer.
        section: Dotted name of the training settings.
        note: What the rows stand for, if not for every prompt; the message begins with it.

    Raises:
        DataError: There are no prompts, or cutting loses more than `min_supervised_kept_ratio` allows.
    """
    return _check_kept(rows, config, section, f"{note}With answers as long as they may become, ")


def check_feature_budget(
    tokens: int, token_bytes: int, config: FeatureStoreConfig, free_bytes: int, note: str = ""
) -> int:
    """Check, before capturing, that the features of all planned rows fit; returns their size in bytes.

    Args:
        tokens: Of all planned rows.
        token_bytes: Bytes of one token's features.
        free_bytes: Free on the disk of the run.
        note: What `tokens` was found from, if not from every prompt; the message begins with it.

    Raises:
        DataError: They would take more than `budget_gib`, or than the disk has.
    """
    needed_bytes = tokens * token_bytes
    for limit_bytes, name in (
        (config.budget_gib * 2**30, "feature_store.budget_gib"),
        (free_bytes, "the disk"),
    ):
        if needed_bytes > limit_bytes:
            raise DataError(
                f"{note}Stored features would take up to {needed_bytes / 2**30:.2f} GiB ({tokens:,} tokens "
                f"of {token_bytes:,} bytes as {config.dtype}); {name} allows {limit_bytes / 2**30:.2f} GiB. "
                "Raise it, tap fewer layers (target_layer_ids), or set distil.capture_features to false and "
                "training.features to colocated."
            )
    return needed_bytes


def check_samples(
    samples: Sequence[Sample], geometry: TargetGeometry, config: TrainingConfig, section: str
) -> tuple[Sequence[Sample], TruncationAccount]:
    """Check a distilled dataset, and drop samples that have no anchor left within the training length.

    Args:
        section: Dotted name of the training settings.

    Returns:
        The samples to train on, and the account of all of them.

    Raises:
        DataError: An id is outside the target vocabulary, nothing is left to train on, or cutting
            loses more than `min_supervised_kept_ratio` allows.
    """
    check_vocabulary(samples, geometry)
    found = _check_kept(map(sample_extent, samples), config, section, "")
    kept = trainable(samples, config)
    if not kept:
        raise DataError(
            f"None of the {len(samples)} samples has two supervised tokens in a row within "
            f"{section}.max_length = {config.max_length}, so there is nothing to train on. "
            f"Raise it, or distil longer answers with distil.max_new_tokens."
        )
    return kept, found


def trainable(samples: Sequence[Sample], config: TrainingConfig) -> Sequence[Sample]:
    """Samples that have an anchor within the training length."""
    return Chosen(
        samples, array("q", (at for at, sample in enumerate(samples) if windows_of(sample, config)))
    )


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


def _check_kept(
    rows: Iterable[Extent], config: TrainingConfig, section: str, condition: str
) -> TruncationAccount:
    found = account(rows, config.max_length, config.long_samples)
    if found is None:
        raise DataError("There is no sequence to train on. Give prompts, or distil them again.")
    if found.kept_ratio < config.min_supervised_kept_ratio:
        total, lengths = found.total, found.lengths
        category = min(found.by_category, key=lambda name: found.by_category[name].kept_ratio)
        keeping = ", ".join(f"{percent} %: {cut}" for percent, cut in found.max_length_keeping.items())
        raise DataError(
            f"{condition}{section}.max_length = {config.max_length} keeps {found.kept_ratio:.1%} of the "
            f"supervised tokens; expected at least {config.min_supervised_kept_ratio:.1%} "
            f"({section}.min_supervised_kept_ratio). {total.clipped_tokens:,} tokens are cut off "
            f"{total.clipped_rows:,} of {total.rows:,} sequences and {total.lost_tokens:,} are in "
            f"{total.lost_rows:,} sequences that could not train at all; worst is category {category} with "
            f"{found.by_category[category].kept_ratio:.1%} kept. Lengths: median {lengths.p50}, "
            f"p95 {lengths.p95}, p99 {lengths.p99}, longest {lengths.longest}. Least max_length that keeps "
            f"a part: {keeping or 'none does'}. To save memory lower {section}.micro_batch_size instead."
        )
    return found

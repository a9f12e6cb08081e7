"""Confidence intervals over prompts.

Every figure here is a function of sums over prompts: tau is delivered tokens over cycles, speedup
is seconds per token over seconds per token. So a bootstrap draws whole prompts, sums their columns
again and applies the same function; no figure is ever a mean of ratios.

Shapes: P prompts, C columns, R resamples.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eagleray.evaluation.config import BootstrapConfig

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """A figure and the range that resampled prompts give it."""

    value: float
    low: float
    high: float


def bootstrap(
    rows_PC: Sequence[Sequence[float]], figure: Callable[[Floats], Floats], config: BootstrapConfig
) -> Interval:
    """Compute a figure from column sums, and its percentile interval.

    Args:
        rows_PC: One row per prompt, at least one.
        figure: Maps sums [..., C] to figures [...].
    """
    columns_PC = np.asarray(rows_PC, dtype=np.float64)
    count = len(columns_PC)
    draws_RP = np.random.default_rng(config.seed).integers(0, count, size=(config.resamples, count))
    figures_R = figure(columns_PC[draws_RP].sum(axis=1))
    tail = (1.0 - config.confidence) / 2.0
    low, high = np.quantile(figures_R, [tail, 1.0 - tail])
    return Interval(float(figure(columns_PC.sum(axis=0))), float(low), float(high))


def ratio_of_sums(sums_C: Floats) -> Floats:
    """Column 0 over column 1; 0 where column 1 is 0."""
    return np.divide(
        sums_C[..., 0], sums_C[..., 1], out=np.zeros_like(sums_C[..., 0]), where=sums_C[..., 1] != 0
    )


def speedup_of_sums(sums_C: Floats) -> Floats:
    """Speedup from the columns plain seconds, plain tokens, drafted seconds, drafted tokens."""
    rate = ratio_of_sums(sums_C[..., [3, 2]])
    plain_rate = ratio_of_sums(sums_C[..., [1, 0]])
    return ratio_of_sums(np.stack([rate, plain_rate], axis=-1))

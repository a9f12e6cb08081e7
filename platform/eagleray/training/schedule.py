"""The learning rate over a run, as a factor of its peak."""

import math

from eagleray.training.config import TrainingConfig


def warmup_steps(total_steps: int, config: TrainingConfig) -> int:
    """Updates before the first at the peak rate."""
    return round(total_steps * config.warmup_ratio)


def rate_factor(step: int, total_steps: int, config: TrainingConfig) -> float:
    """Factor of update `step` (0-based): a linear rise, then what `config.schedule` says."""
    warmup = warmup_steps(total_steps, config)
    if step < warmup:
        return (step + 1) / (warmup + 1)
    if config.schedule == "constant":
        return 1.0
    if config.schedule == "wsd":
        decay = round(total_steps * config.decay_ratio)
        return min(1.0, (total_steps - step) / (decay + 1))
    progress = (step - warmup) / max(1, total_steps - warmup)
    return 0.5 * (1 + math.cos(math.pi * progress))

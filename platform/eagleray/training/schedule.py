"""The learning rate over a run, as a factor of its peak."""

import math


def cosine_with_warmup(step: int, total_steps: int, warmup_ratio: float) -> float:
    """Factor of update `step` (0-based): a linear rise, then a cosine that reaches zero after the last."""
    warmup_steps = round(total_steps * warmup_ratio)
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    progress = (step - warmup_steps) / max(1, total_steps - warmup_steps)
    return 0.5 * (1 + math.cos(math.pi * progress))

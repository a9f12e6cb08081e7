"""How drafters are judged: the evaluation section of a recipe."""

from typing import Annotated

from pydantic import Field, NonNegativeInt, PositiveInt

from eagleray.settings import Settings


class BootstrapConfig(Settings):
    """Confidence intervals over prompts."""

    resamples: PositiveInt = 2000
    """Times the prompts are drawn again with replacement."""

    confidence: float = Field(default=0.95, gt=0.5, lt=1.0)
    """Share of the resampled figures between `low` and `high`."""

    seed: int = 0
    """Drives the draws, so that the same records give the same interval."""


class EvaluationConfig(Settings):
    """The evaluation section of a recipe."""

    prompts_per_family: PositiveInt = 40
    """Held-out prompts of each family that measure acceptance; fewer where fewer are held out."""

    max_new_tokens: PositiveInt = 96
    """Longest answer when acceptance is measured."""

    batch_size: PositiveInt = 16
    """Prompts decoded together when acceptance is measured."""

    depths: dict[str, tuple[PositiveInt, ...]] = {}
    """Draft depths to try, by drafter label. Labels that are not named take `default_depths`."""

    default_depths: tuple[PositiveInt, ...] = Field(default=(2, 3, 5, 7), min_length=1)
    """Draft depths of drafters that `depths` does not name."""

    timing_prompts_per_family: NonNegativeInt = 8
    """Prompts of each family that measure speed at batch 1. 0 measures none, and no verdict is given."""

    timing_new_tokens: PositiveInt = 64
    """Longest answer when speed is measured."""

    concurrencies: tuple[Annotated[int, Field(ge=2)], ...] = ()
    """Sequences decoded together at which speed is measured beside batch 1, each drafter at its deepest; says
    where drafting stops to pay. None are measured if empty."""

    groups_per_concurrency: PositiveInt = 5
    """Groups of prompts that measure each of `concurrencies`; fewer where prompts run out."""

    sampled_answers: NonNegativeInt = 0
    """Answers to one prompt that are drawn at temperature 1 with each drafter at its deepest, and as many
    without, to test that both are of one distribution. 0 leaves this out, which the report says."""

    sampled_tokens: int = Field(default=6, ge=2)
    """Length of these answers. The first token comes from prefill, so at least two."""

    hf_prompts: NonNegativeInt = 4
    """Prompts on which the engine is timed against Hugging Face `generate`. 0 leaves this out."""

    bootstrap: BootstrapConfig = BootstrapConfig()
    """Confidence intervals."""

    workers: PositiveInt = 1
    """Processes that measure at the same time, each with `1 / workers` of the cores."""

    gpus_per_worker: float = Field(default=0, ge=0)
    """GPUs of one measuring process; 0 measures on the CPU."""

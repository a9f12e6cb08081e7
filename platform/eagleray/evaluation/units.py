"""The work of an evaluation, cut into units.

A unit needs no other unit, has a stable name, and gives one record that is plain JSON. So units
run in any order on any number of processes, and a run that was killed does only what is missing.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from eagleray.errors import ConfigError
from eagleray.evaluation.config import EvaluationConfig
from eagleray.settings import Settings

PLAIN = "plain"


class DraftChoice(Settings):
    """Which drafter, and how many tokens it drafts per cycle."""

    label: str
    depth: int

    @property
    def name(self) -> str:
        """Part of a unit's name."""
        return f"{self.label}-{self.depth}"


class FamilyUnit(Settings):
    """What one setting does on prompts of a family."""

    kind: str
    family: str
    draft: DraftChoice | None
    """None is plain decoding."""

    @property
    def name(self) -> str:
        """Stable over runs of the same recipe."""
        return f"{self.kind}-{self.family}-{self.draft.name if self.draft else PLAIN}"


class AnswersUnit(FamilyUnit):
    """Answer the held-out prompts of a family in batches: with a drafter for acceptance, or plain."""

    kind: Literal["answers"] = "answers"


class TimingUnit(Settings):
    """Answer one prompt with every setting in turn, at batch 1, so that all settings share one moment."""

    kind: Literal["timing"] = "timing"
    family: str
    prompt_index: int
    drafts: tuple[DraftChoice, ...]

    @property
    def name(self) -> str:
        """Stable over runs of the same recipe."""
        return f"timing-{self.family}-{self.prompt_index:03d}"


class ReferenceUnit(Settings):
    """Answer one prompt with the engine and with Hugging Face `generate`, both plain and greedy."""

    kind: Literal["reference"] = "reference"
    family: str
    prompt_index: int

    @property
    def name(self) -> str:
        """Stable over runs of the same recipe."""
        return f"reference-{self.family}-{self.prompt_index:03d}"


class LoadUnit(Settings):
    """Answer a group of prompts together with every setting in turn."""

    kind: Literal["load"] = "load"
    concurrency: int
    group: int
    drafts: tuple[DraftChoice, ...]

    @property
    def name(self) -> str:
        """Stable over runs of the same recipe."""
        return f"load-{self.concurrency:03d}-{self.group:03d}"


class SampledUnit(FamilyUnit):
    """Draw many answers to the first prompt of a family."""

    kind: Literal["sampled"] = "sampled"


Unit = AnswersUnit | TimingUnit | ReferenceUnit | LoadUnit | SampledUnit
UNIT: TypeAdapter[Unit] = TypeAdapter(Annotated[Unit, Field(discriminator="kind")])
"""Reads a unit from plain data: `UNIT.validate_python(...)`."""


def plan_units(
    config: EvaluationConfig, family_sizes: Mapping[str, int], max_depths: Mapping[str, int | None]
) -> tuple[Unit, ...]:
    """List all units of an evaluation. Timing comes last, when the machine is quiet.

    Args:
        family_sizes: Held-out prompts at hand, by family.
        max_depths: Every drafter label and the largest depth it can draft; None is unbounded.

    Raises:
        ConfigError: `evaluation.depths` names no such drafter, or a depth beyond what one can draft.
    """
    drafts = _draft_choices(config, max_depths)
    families = [family for family, size in family_sizes.items() if size]
    answers = [AnswersUnit(family=family, draft=draft) for family in families for draft in (None, *drafts)]
    timings = [
        TimingUnit(family=family, prompt_index=index, drafts=drafts)
        for index in range(config.timing_prompts_per_family)
        for family in families
        if index < family_sizes[family]
    ]
    ranked = [
        ReferenceUnit(family=family, prompt_index=index)
        for index in range(max(family_sizes.values(), default=0))
        for family in families
        if index < family_sizes[family]
    ]
    deepest = _deepest(drafts)
    loads = [
        LoadUnit(concurrency=concurrency, group=group, drafts=deepest)
        for concurrency in config.concurrencies
        for group in range(min(config.groups_per_concurrency, sum(family_sizes.values()) // concurrency))
    ]
    sampled = [
        SampledUnit(family=families[0], draft=draft)
        for draft in (None, *deepest)
        if families and config.sampled_answers
    ]
    return (*answers, *sampled, *ranked[: config.hf_prompts], *loads, *timings)


def _deepest(drafts: tuple[DraftChoice, ...]) -> tuple[DraftChoice, ...]:
    """One choice of each drafter."""
    by_label: dict[str, DraftChoice] = {}
    for draft in drafts:
        if draft.label not in by_label or draft.depth > by_label[draft.label].depth:
            by_label[draft.label] = draft
    return tuple(by_label.values())


def _draft_choices(config: EvaluationConfig, max_depths: Mapping[str, int | None]) -> tuple[DraftChoice, ...]:
    if unknown := sorted(config.depths.keys() - max_depths.keys()):
        raise ConfigError(
            f"evaluation.depths names {unknown[0]!r}, but the drafters of this recipe are "
            f"{', '.join(sorted(max_depths)) or '(none)'}. Use one of these labels."
        )
    choices = []
    for label, max_depth in max_depths.items():
        for depth in config.depths.get(label, config.default_depths):
            if max_depth is not None and depth > max_depth:
                raise ConfigError(
                    f"evaluation.depths.{label} holds {depth}, but this drafter drafts at most {max_depth} "
                    f"tokens. Set evaluation.depths.{label} to depths in 1..{max_depth}."
                )
            choices.append(DraftChoice(label=label, depth=depth))
    return tuple(choices)

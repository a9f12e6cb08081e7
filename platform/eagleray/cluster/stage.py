"""One stage of a run: what it depends on, what it does, what it makes."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagleray.corpus.storage import Storage
from eagleray.errors import ConfigError
from eagleray.recipe.stages import StageRecord, begin_stage, forget_stage, save_stage


@dataclass(frozen=True, kw_only=True)
class StageOutcome:
    """What a finished stage leaves for the record."""

    peak_rss_bytes: int
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A resumable step of a run."""

    name: str
    inputs: Callable[[], dict[str, Any]]
    """Everything the outcome depends on, asked when the stage is reached."""
    work: Callable[[], StageOutcome]
    """Does what is still missing; safe to run again after a kill at any instant."""
    products: tuple[Storage, ...]
    """Folders that hold nothing but what this stage makes."""
    needs: tuple[str, ...] = ()
    """Stages whose products this one reads."""


def run_stage(stage: Stage, records: Path) -> StageRecord:
    """Run a stage unless its record says it is complete for these inputs.

    Raises:
        DataError: The stage was begun for other inputs.
    """
    record = begin_stage(records, stage.name, stage.inputs())
    if record.complete:
        return record
    start_s = time.monotonic()
    outcome = stage.work()
    record = record.model_copy(
        update={
            "complete": True,
            "wall_s": round(time.monotonic() - start_s, 1),
            "peak_rss_bytes": outcome.peak_rss_bytes,
            "facts": outcome.facts,
        }
    )
    save_stage(records, record)
    return record


def discard_stages(stages: Sequence[Stage], redo: Sequence[str], records: Path) -> None:
    """Forget the named stages and those that need them, and delete what they made.

    Args:
        stages: All stages in order: a stage comes after those it needs.

    Raises:
        ConfigError: There is no stage of that name.
    """
    names = [stage.name for stage in stages]
    for name in redo:
        if name not in names:
            raise ConfigError(f"--redo {name}: this recipe has the stages {', '.join(names)}.")
    discarded = set(redo)
    for stage in stages:
        if stage.name not in discarded and discarded.isdisjoint(stage.needs):
            continue
        discarded.add(stage.name)
        forget_stage(records, stage.name)
        for product in stage.products:
            product.discard()

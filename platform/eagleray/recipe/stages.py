"""What a run has done: one record per stage, with the inputs it was done for.

A stage is skipped when its record says complete for the same inputs, continued when it was begun
for the same inputs, and refused when the inputs changed: the fields that differ are named and
nothing made so far is touched.
"""

import json
from pathlib import Path
from typing import Any

from eagleray.errors import DataError
from eagleray.files import write_json_atomically
from eagleray.settings import Settings, differences


class StageRecord(Settings):
    """State of one stage on disk."""

    stage: str
    inputs: dict[str, Any]
    """Everything the outcome depends on, as plain data."""
    complete: bool = False
    wall_s: float = 0.0
    """Wall time of the attempt that finished the stage."""
    peak_rss_bytes: int = 0
    """Largest resident set of any process of the stage."""
    facts: dict[str, Any] = {}
    """What later stages and the report want to know of it."""


def begin_stage(folder: Path, stage: str, inputs: dict[str, Any]) -> StageRecord:
    """Find or make the record of a stage.

    Raises:
        DataError: The stage was begun for other inputs; says which differ.
    """
    inputs = json.loads(json.dumps(inputs))
    path = folder / f"{stage}.json"
    if not path.exists():
        record = StageRecord(stage=stage, inputs=inputs)
        save_stage(folder, record)
        return record
    record = StageRecord.model_validate_json(path.read_text(encoding="utf-8"))
    if differing := differences(record.inputs, inputs):
        raise DataError(
            f"Stage {stage} of this run was begun with other inputs: {'; '.join(differing)}. Restore the "
            f"recipe, give the run another run.name, or start the stage anew with --redo {stage}."
        )
    return record


def read_stage(folder: Path, stage: str) -> StageRecord:
    """Read the record of a stage that must be complete.

    Raises:
        DataError: The stage was not run, or not to its end.
    """
    path = folder / f"{stage}.json"
    if path.exists():
        record = StageRecord.model_validate_json(path.read_text(encoding="utf-8"))
        if record.complete:
            return record
    raise DataError(
        f"Stage {stage} of this run is not complete (no finished record in {path}). Run it first."
    )


def save_stage(folder: Path, record: StageRecord) -> None:
    """Write a stage record atomically."""
    write_json_atomically(folder / f"{record.stage}.json", record.model_dump(mode="json"))


def reopen_stage(folder: Path, stage: str) -> None:
    """Mark a stage as begun but not complete, for the same inputs; nothing if it was never begun."""
    path = folder / f"{stage}.json"
    if path.exists():
        record = StageRecord.model_validate_json(path.read_text(encoding="utf-8"))
        save_stage(folder, record.model_copy(update={"complete": False}))


def forget_stage(folder: Path, stage: str) -> None:
    """Drop a stage's record."""
    (folder / f"{stage}.json").unlink(missing_ok=True)

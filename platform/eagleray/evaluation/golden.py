"""Golden outputs: the greedy answers of a version that was trusted, which every later one must give.

Drafting is compared with plain decoding of the same build, so a build whose plain decoding changed passes.
A golden file keeps what the target said under other versions of the engine, the kernels and the machine.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from eagleray.errors import DataError
from eagleray.evaluation.exactness import TARGET, Check
from eagleray.evaluation.near_ties import first_divergence
from eagleray.files import write_json_atomically
from eagleray.settings import Settings, differences

NAME = "golden outputs"
CONDITIONS = ("target_hash", "template_hash", "dtype", "max_new_tokens")
"""What greedy answers depend on, whatever computes them."""

Answers = Mapping[str, tuple[int, ...]]
"""Ids that the target emitted without a drafter, by prompt id."""


class Golden(Settings):
    """Content of a golden file."""

    conditions: dict[str, Any]
    answers: dict[str, tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class GoldenFile:
    """A golden file that is to be held against a measurement, or made from it."""

    path: Path
    write: bool = False

    def apply(self, regime: Mapping[str, Any], answers: Answers) -> list[Check]:
        """Compare the answers with the file, or write them into it, which checks nothing.

        Args:
            regime: That of the answers, with the fields of `CONDITIONS`.

        Raises:
            DataError: The file cannot be read, is of other conditions, or shares no prompt.
        """
        conditions = {name: regime.get(name) for name in CONDITIONS}
        if self.write:
            golden = Golden(conditions=conditions, answers=dict(answers))
            write_json_atomically(self.path, golden.model_dump(mode="json"))
            return []
        golden = self._read()
        if differing := differences(golden.conditions, conditions):
            raise DataError(
                f"The golden file {self.path} is of other conditions: {'; '.join(differing)}. Answers do not "
                "compare across them; write a file for these with --write-golden."
            )
        return [compare_golden(golden, answers)]

    def _read(self) -> Golden:
        try:
            return Golden.model_validate(json.loads(self.path.read_text(encoding="utf-8")))
        except (OSError, ValueError, ValidationError) as error:
            raise DataError(
                f"{self.path} is no golden file that can be read: {error}. Write one with --write-golden."
            ) from None


def golden_files(compare: Path | None, write: Path | None) -> list[GoldenFile]:
    """Those that a job was asked for: the old one is read before a new one is written."""
    asked = [(compare, False), (write, True)]
    return [GoldenFile(path=path, write=writes) for path, writes in asked if path is not None]


def compare_golden(golden: Golden, answers: Answers) -> Check:
    """Hold answers against those of the file.

    Raises:
        DataError: They share no prompt.
    """
    shared = [prompt_id for prompt_id in answers if prompt_id in golden.answers]
    if not shared:
        raise DataError(
            f"None of the {len(answers)} prompts is among the {len(golden.answers)} of the golden file. "
            "Measure the prompts that it was written for."
        )
    differing = [
        f"prompt {prompt_id}, token {token}"
        for prompt_id in shared
        if (token := first_divergence(golden.answers[prompt_id], answers[prompt_id])) is not None
    ]
    if not differing:
        detail = f"all {len(shared)} answers equal the golden ones, token for token"
    else:
        detail = f"{len(differing)} of {len(shared)} answers differ from golden ones, first at {differing[0]}"
    return Check(name=NAME, subject=TARGET, outcome="failed" if differing else "passed", detail=detail)

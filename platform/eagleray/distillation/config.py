"""Who answers the prompts, what is learnt of the answers, and how they are cut into shards."""

from pydantic import Field, PositiveInt, model_validator

from eagleray.corpus.config import AnswerSettings, AnswersFrom, SupervisionConfig
from eagleray.engines.config import DistilEngineConfig
from eagleray.settings import Settings
from eagleray.speculation.config import SamplingConfig


class CategoryAnswers(Settings):
    """How the prompts of one category are answered, where that differs from the others."""

    max_new_tokens: int | None = Field(default=None, ge=1)
    """Longest answer, in tokens. None: as for the others."""

    sampling: SamplingConfig | None = None
    """How each token is drawn. None: as for the others."""

    samples_per_prompt: int | None = Field(default=None, ge=1)
    """Answers drawn for each prompt. None: as for the others."""


class WorkerRange(Settings):
    """A number of processes that follows the work."""

    min: PositiveInt
    """Processes that there are from the start."""

    max: PositiveInt
    """Processes that there may be."""

    @model_validator(mode="after")
    def _is_a_range(self) -> "WorkerRange":
        if self.min > self.max:
            raise ValueError(f"min is {self.min}, max {self.max}; expected min to be at most max")
        return self


class DistilConfig(AnswerSettings):
    """The distil section of a recipe."""

    engine: DistilEngineConfig | None = None
    """What runs the target for distilling. None: the engine of the recipe."""

    answers: AnswersFrom = "regenerate"
    """`regenerate`: the target answers every user turn itself, its own answers being the history.
    `keep`: the answers of the input rows are taken as they are and every sample is marked as off-policy;
    a drafter trained on them learns to agree with whoever wrote them, not with the target."""

    supervision: SupervisionConfig = SupervisionConfig()
    """Which parts of the answers are learnt."""

    by_category: dict[str, CategoryAnswers] = {}
    """Category of prompts -> how they are answered."""

    rows_per_shard: int = Field(default=32, ge=1)
    """Prompts per shard: the unit that is published and, after a kill, redone."""

    window_prompts: int = Field(default=2048, ge=1)
    """Prompts that are sorted by length together before they are cut into shards, so that what is generated
    together is of like length. This many prompts are held by a worker at a time."""

    dataset: str | None = None
    """Where the dataset lies, if not in the run's folder: a path or a storage address of its own, such as
    `s3://bucket/datasets/mine`. Prompts and features stay in the run's folder."""

    workers: PositiveInt | WorkerRange = 2
    """Engine processes, as a number or as `{min: 1, max: 8}`: then more are started while there is work
    for them and the cluster has room. Each takes `cpus_per_worker` cores and as many threads."""

    cpus_per_worker: int = Field(default=1, ge=1)
    """Cores of one engine process. On CPUs, more processes of one thread beat more threads."""

    gpus_per_worker: float = Field(default=0, ge=0)
    """GPUs of one engine process; 0 runs it on the CPU."""

    capture_features: bool = True
    """Store the tapped features while generating: the target has just computed them, so they are free.
    The engines `native` and `vllm` can. Needs `training.features: stored` to be of use."""

    @property
    def worker_range(self) -> WorkerRange:
        """Fewest and most engine processes."""
        if isinstance(self.workers, WorkerRange):
            return self.workers
        return WorkerRange(min=self.workers, max=self.workers)

    def answering_by_category(self) -> dict[str, AnswerSettings]:
        """Settings of the categories that have some of their own, filled up with those of the others."""
        common = {name: getattr(self, name) for name in AnswerSettings.model_fields}
        return {
            category: AnswerSettings(
                **{**common, **{name: value for name, value in changes if value is not None}}
            )
            for category, changes in self.by_category.items()
        }

    def answering(self, category: str) -> AnswerSettings:
        """How the prompts of a category are answered."""
        return self.answering_by_category().get(category, self)

    @model_validator(mode="after")
    def _draws_of_categories_differ(self) -> "DistilConfig":
        self.answering_by_category()
        return self

    @model_validator(mode="after")
    def _only_a_target_at_hand_has_features(self) -> "DistilConfig":
        if self.capture_features and self.engine is not None and self.engine.name in ("openai", "replay"):
            raise ValueError(
                f"engine {self.engine.name} starts no target of its own, so no features can be captured; "
                "set capture_features: false and training.features: colocated, or name engine native or vllm"
            )
        return self

    @model_validator(mode="after")
    def _kept_answers_are_not_computed(self) -> "DistilConfig":
        if self.answers == "keep" and self.capture_features:
            raise ValueError(
                "answers: keep runs no target, so no features can be captured; set capture_features: false "
                "and training.features: colocated"
            )
        return self

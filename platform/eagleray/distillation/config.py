"""Who answers the prompts, what is learnt of the answers, and how they are cut into shards."""

from pydantic import Field, model_validator

from eagleray.corpus.config import AnswersFrom, SupervisionConfig
from eagleray.settings import Settings


class DistilConfig(Settings):
    """The distil section of a recipe."""

    answers: AnswersFrom = "regenerate"
    """`regenerate`: the target answers every user turn itself, its own answers being the history.
    `keep`: the answers of the input rows are taken as they are and every sample is marked as off-policy;
    a drafter trained on them learns to agree with whoever wrote them, not with the target."""

    supervision: SupervisionConfig = SupervisionConfig()
    """Which parts of the answers are learnt."""

    max_new_tokens: int = Field(default=96, ge=1)
    """Longest answer, in tokens. Answers cut here are counted and get no invented end token."""

    rows_per_shard: int = Field(default=32, ge=1)
    """Prompts per shard: the unit that is published and, after a kill, redone."""

    window_prompts: int = Field(default=2048, ge=1)
    """Prompts that are sorted by length together before they are cut into shards, so that what is generated
    together is of like length. This many prompts are held by a worker at a time."""

    dataset: str | None = None
    """Where the dataset lies, if not in the run's folder: a path or a storage address of its own, such as
    `s3://bucket/datasets/mine`. Prompts and features stay in the run's folder."""

    workers: int = Field(default=2, ge=1)
    """Engine processes. Each takes `cpus_per_worker` cores and as many threads."""

    cpus_per_worker: int = Field(default=1, ge=1)
    """Cores of one engine process. On CPUs, more processes of one thread beat more threads."""

    gpus_per_worker: float = Field(default=0, ge=0)
    """GPUs of one engine process; 0 runs it on the CPU."""

    capture_features: bool = True
    """Store the tapped features while generating: the target has just computed them, so they are free.
    Needs `training.features: stored` to be of use."""

    @model_validator(mode="after")
    def _kept_answers_are_not_computed(self) -> "DistilConfig":
        if self.answers == "keep" and self.capture_features:
            raise ValueError(
                "answers: keep runs no target, so no features can be captured; set capture_features: false "
                "and training.features: colocated"
            )
        return self

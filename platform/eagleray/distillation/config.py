"""How the target answers the prompts, and how the answers are cut into shards."""

from pydantic import Field

from eagleray.settings import Settings


class DistilConfig(Settings):
    """The distil section of a recipe."""

    max_new_tokens: int = Field(default=96, ge=1)
    """Longest answer, in tokens. Answers cut here are counted and get no invented end token."""

    rows_per_shard: int = Field(default=32, ge=1)
    """Prompts per shard: the unit that is generated, published and, after a kill, redone."""

    workers: int = Field(default=2, ge=1)
    """Engine processes. Each takes `cpus_per_worker` cores and as many threads."""

    cpus_per_worker: int = Field(default=1, ge=1)
    """Cores of one engine process. On CPUs, more processes of one thread beat more threads."""

    gpus_per_worker: float = Field(default=0, ge=0)
    """GPUs of one engine process; 0 runs it on the CPU."""

    capture_features: bool = True
    """Store the tapped features while generating: the target has just computed them, so they are free.
    Needs `training.features: stored` to be of use."""

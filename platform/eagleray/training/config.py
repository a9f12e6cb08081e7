"""How a drafter is trained."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from eagleray.corpus.windows import LongSamples
from eagleray.settings import Settings
from eagleray.watchdog.config import WatchdogConfig

MIN_WINDOW = 8
"""Tokens of the shortest windows: a quarter of them is context, and a draft starts two tokens back."""


class ZeroConfig(Settings):
    """Settings of the backend `deepspeed`."""

    stage: Literal[1, 2, 3] = 2
    """What ranks share out: the optimiser's memory (1), gradients too (2), parameters too (3)."""

    offload: bool = False
    """Keep the optimiser and its memory on the host; saves 12 bytes a parameter of the device."""


class StreamConfig(Settings):
    """The target processes of the feature mode `streamed`."""

    min_workers: int = Field(default=1, gt=0)
    """Target processes that there are from the start."""

    max_workers: int = Field(default=1, gt=0)
    """Target processes that there may be, where trainers wait for them."""

    cpus_per_worker: int = Field(default=1, gt=0)
    """Cores of each."""

    gpus_per_worker: float = Field(default=1.0, ge=0)
    """GPUs of each, where trainers have GPUs."""

    prefetch_batches: int = Field(default=2, gt=0)
    """Micro-batches that a trainer fetches ahead."""

    @model_validator(mode="after")
    def _is_a_range(self) -> "StreamConfig":
        if self.min_workers > self.max_workers:
            raise ValueError(
                f"min_workers is {self.min_workers}, max_workers {self.max_workers}; expected min_workers to "
                "be at most max_workers"
            )
        return self


class FreshStart(Settings):
    """Random weights."""

    how: Literal["fresh"] = "fresh"
    """This word."""


class ResumedStart(Settings):
    """Everything from another run's checkpoint: weights, moments, schedule, place in the data, random state.

    What is learned from must be the same; workers, backend and micro-batches may differ.
    """

    how: Literal["resume"]
    """This word."""

    checkpoints: Path
    """Folder of that run's training: the newest whole checkpoint there is taken."""


class WarmStartConfig(Settings):
    """Weights alone, from an exported drafter. Schedule, moments and place in the data begin anew."""

    how: Literal["warm_start"]
    """This word."""

    drafter: Path
    """Exported drafter folder."""

    expected_loss: float | None = Field(default=None, gt=0)
    """Loss that these weights have on data like this. None: the one in the drafter's profile."""


StartConfig = Annotated[FreshStart | ResumedStart | WarmStartConfig, Field(discriminator="how")]


class TrainingConfig(Settings):
    """The training section of a recipe."""

    epochs: int = Field(default=5, gt=0)
    """Passes over the dataset."""

    start: StartConfig = FreshStart()
    """What the first step begins from. A run that has checkpoints of its own goes on from those."""

    max_steps: int | None = Field(default=None, gt=0)
    """Stop after this many optimiser steps; the schedule ends there too. None: after `epochs`."""

    global_batch_size: int = Field(default=8, gt=0)
    """Sequences per optimiser step over all workers; how many workers there are changes nothing learned."""

    micro_batch_size: int = Field(default=4, gt=0)
    """Rows per forward and backward of one worker; the rest of its share is accumulated."""

    pack: bool = False
    """Lay short sequences one after the other into rows of `max_length`, so that a forward is full. None sees
    another; a step's loss and gradient stay what they are, rounding aside."""

    length_window_batches: int = Field(default=1, gt=0)
    """Sequences are sorted by length within this many batches before they are cut, so that a batch pads
    little. 1: batches stay random."""

    recompute_activations: bool = False
    """Forget what layers computed and compute it again in the backward pass: less memory, about a third more
    time, the same gradients. The watchdog turns it on when a rank runs out of memory."""

    learning_rate: float = Field(default=4e-3, gt=0)
    """Peak rate of the matrices inside the drafter's layers. AdamW wants about a fifth of Muon's."""

    adam_learning_rate: float = Field(default=2e-3, gt=0)
    """Peak rate of norms and of the output matrix when `optimizer` is `muon`."""

    optimizer: Literal["muon", "adamw"] = "muon"
    """Muon orthogonalises the update of each matrix and learns as much in about half the passes."""

    muon_iterations: int = Field(default=5, ge=3, le=6)
    """Iterations that orthogonalise one Muon update; fewer are cheaper and less exact."""

    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled decay of matrices."""

    schedule: Literal["cosine", "wsd", "constant"] = "cosine"
    """The rate after its rise. `cosine` falls to zero over the rest of the run. `wsd` (warm-up,
    stable, decay) stays at the peak and falls linearly over the last `decay_ratio`: its stable part can be
    trained on without a new warm-up. `constant` stays."""

    warmup_ratio: float = Field(default=0.04, ge=0, lt=1)
    """Share of all steps over which the rate rises linearly."""

    decay_ratio: float = Field(default=0.2, ge=0, lt=1)
    """Share of all steps over which `wsd` falls."""

    grad_clip: float = Field(default=1.0, gt=0)
    """Largest norm of the gradient over all parameters."""

    max_length: int = Field(default=1024, gt=1)
    """Longest sequence in tokens, prompt included. Preflight accounts for what it costs that longer ones are
    cut (`long_samples`)."""

    long_samples: LongSamples = "clip"
    """What becomes of samples longer than `max_length`. `clip` trains on their beginning. `window` trains on
    all of their answers, in windows of that length: the target's features know the whole sample, the
    drafter itself sees at least a quarter window of context before what it learns."""

    min_supervised_kept_ratio: float = Field(default=0.95, ge=0, le=1)
    """Least share of the dataset's supervised tokens that must be trained on at `max_length`; preflight
    refuses below it, before distilling for the longest possible answers and after it for the true ones."""

    workers: int = Field(default=2, gt=0)
    """Training processes."""

    min_workers: int | None = Field(default=None, gt=0)
    """Fewest processes with which a run goes on when machines are lost and none replace them. None: all."""

    wait_for_machines_s: float = Field(default=300.0, ge=0)
    """Seconds that a run waits for room for all workers before it goes on with fewer, or gives up."""

    backend: Literal["ddp", "fsdp", "deepspeed"] = "ddp"
    """How workers share a drafter. `ddp`: each holds all of it. `fsdp`: each holds some rows of every
    parameter, gradient and moment. `deepspeed`: as `zero` says, with AdamW. None changes what is learned."""

    zero: ZeroConfig = ZeroConfig()
    """Of the backend `deepspeed`."""

    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Numbers of the drafter's matrix products. Weights, norms, gradients and moments stay float32: a step
    of a norm's weight is smaller than bfloat16 can tell from none."""

    deterministic: bool = False
    """Refuse operations whose results differ from run to run on GPUs; some are slower without. On CPUs as
    many workers give the same bits anyway."""

    features: Literal["stored", "colocated", "streamed"] = "stored"
    """Where the target's features come from. `stored`: captured while distilling. `colocated`: the target
    runs inside each worker. `streamed`: it runs in processes of its own, as `stream` says. A step is the
    same with all of them, but for the dtype in which features are stored."""

    stream: StreamConfig = StreamConfig()
    """Of the feature mode `streamed`."""

    feature_cache_gib: float = Field(default=4.0, ge=0)
    """Memory of a worker in which stored features stay after their first use, until it is full."""

    checkpoint_every_steps: int = Field(default=200, gt=0)
    """Optimiser steps between checkpoints; the last step always has one."""

    keep_checkpoints: int = Field(default=2, gt=0)
    """Complete checkpoints kept, besides the best one; older ones are deleted."""

    mirror: str | None = Field(default=None, pattern=r"^[a-z0-9]+://.+")
    """Storage address under which every checkpoint is copied while the training goes on, e.g.
    `s3://bucket/runs`; a run whose own folder is empty goes on from there. None: checkpoints stay where they
    are written."""

    replay_samples: int = Field(default=32, ge=0)
    """Samples kept out of training, at most a tenth of them, in whose answers the drafter is tried. The
    checkpoint with the highest tau there is exported. 0: the last checkpoint is."""

    replay_every_steps: int = Field(default=100, gt=0)
    """Optimiser steps between such trials; the last step always has one."""

    replay_depth: int = Field(default=5, gt=0)
    """Draft depth of the trials, at most the drafter's own."""

    parity_gate: bool = True
    """Before a run's first step: learn one batch by heart, export, load, and hold the live decode to its
    replay. Takes seconds, and one worker that can hold the target."""

    seed: int = Field(default=0, ge=0)
    """Drives initial weights, the order of sequences and every random choice of a step."""

    watchdog: WatchdogConfig = WatchdogConfig()
    """Finds ranks that hang and takes the run up again."""

    @property
    def row_tokens(self) -> int | None:
        """Room of a row that several sequences share; None where each has one to itself."""
        return self.max_length if self.pack else None

    @property
    def cpus(self) -> int:
        """Cores that a training holds at once, at least."""
        streaming = (
            self.stream.min_workers * self.stream.cpus_per_worker if self.features == "streamed" else 0
        )
        return self.workers + streaming

    @model_validator(mode="after")
    def _windows_hold_context(self) -> "TrainingConfig":
        if self.long_samples == "window" and self.max_length < MIN_WINDOW:
            raise ValueError(
                f"max_length is {self.max_length}; windows of a sample need at least {MIN_WINDOW} tokens, so "
                "that some of them are context"
            )
        return self

    @model_validator(mode="after")
    def _schedule_fits(self) -> "TrainingConfig":
        if self.schedule == "wsd" and self.warmup_ratio + self.decay_ratio > 1:
            raise ValueError(
                f"warmup_ratio {self.warmup_ratio} and decay_ratio {self.decay_ratio} take more than the run;"
                " lower one of them"
            )
        return self

    @model_validator(mode="after")
    def _optimizer_fits(self) -> "TrainingConfig":
        if self.backend == "deepspeed" and self.optimizer == "muon":
            raise ValueError(
                "backend deepspeed flattens parameters, and muon needs their matrices; set optimizer to "
                "adamw and learning_rate to about a fifth, or backend to fsdp"
            )
        return self

    @model_validator(mode="after")
    def _workers_share_evenly(self) -> "TrainingConfig":
        if self.global_batch_size % self.workers:
            raise ValueError(
                f"global_batch_size {self.global_batch_size} must be a multiple of workers {self.workers}, "
                "so that every worker takes the same number of steps"
            )
        if self.min_workers is not None and self.min_workers > self.workers:
            raise ValueError(f"min_workers is {self.min_workers}; expected at most workers, {self.workers}")
        return self

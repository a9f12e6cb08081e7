"""How a drafter is trained."""

from typing import Literal

from pydantic import Field, model_validator

from eagleray.corpus.windows import LongSamples
from eagleray.settings import Settings
from eagleray.watchdog.config import WatchdogConfig

MIN_WINDOW = 8
"""Tokens of the shortest windows: a quarter of them is context, and a draft starts two tokens back."""


class TrainingConfig(Settings):
    """The training section of a recipe."""

    epochs: int = Field(default=5, gt=0)
    """Passes over the dataset."""

    max_steps: int | None = Field(default=None, gt=0)
    """Stop after this many optimiser steps; the schedule ends there too. None: after `epochs`."""

    global_batch_size: int = Field(default=8, gt=0)
    """Sequences per optimiser step over all workers; how many workers there are changes nothing learned."""

    micro_batch_size: int = Field(default=4, gt=0)
    """Sequences per forward and backward of one worker; the rest of its share is accumulated."""

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

    warmup_ratio: float = Field(default=0.04, ge=0, lt=1)
    """Share of all steps over which the rate rises linearly; a cosine to zero follows."""

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

    features: Literal["stored", "colocated"] = "stored"
    """Read features captured while distilling, or run the target inside each worker."""

    cache_features: bool = True
    """Keep stored features in memory after their first use."""

    checkpoint_every_steps: int = Field(default=200, gt=0)
    """Optimiser steps between checkpoints; the last step always has one."""

    keep_checkpoints: int = Field(default=2, gt=0)
    """Complete checkpoints kept, besides the best one; older ones are deleted."""

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

    @model_validator(mode="after")
    def _windows_hold_context(self) -> "TrainingConfig":
        if self.long_samples == "window" and self.max_length < MIN_WINDOW:
            raise ValueError(
                f"max_length is {self.max_length}; windows of a sample need at least {MIN_WINDOW} tokens, so "
                "that some of them are context"
            )
        return self

    @model_validator(mode="after")
    def _workers_share_evenly(self) -> "TrainingConfig":
        if self.global_batch_size % self.workers:
            raise ValueError(
                f"global_batch_size {self.global_batch_size} must be a multiple of workers {self.workers}, "
                "so that every worker takes the same number of steps"
            )
        return self

"""What being watched costs a training step: blocks of steps in turn with and without the watchdog.

Watched steps tell a heartbeat file of every phase, and a second process looks at it once a second and judges,
as an agent and the driver do. One rank, so that no exchange hides what it costs.
"""

import multiprocessing
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagleray.recipe.loading import load_recipe
from eagleray.watchdog.agent import NodeAgent
from eagleray.watchdog.config import WatchdogConfig
from eagleray.watchdog.heartbeat import Heartbeat, HeartbeatFile, NoHeartbeat
from eagleray.watchdog.telemetry import Phase
from eagleray.watchdog.watcher import Watcher
from jobs.real_faults import LABEL, RECIPE, SMALL

if TYPE_CHECKING:
    from eagleray.training.loop import TrainingJob

BLOCK_STEPS = 4
UNCOUNTED_BLOCKS = 2
"""The first steps allocate."""
NEVER = 1_000_000


@dataclass
class Switch:
    """A heartbeat that is on in every other block of steps, and the reporter that times the blocks."""

    watched: Heartbeat
    turn: Callable[[bool], None]
    """Tells whoever looks from outside."""
    blocks_s: list[list[tuple[float, float]]] = field(default_factory=list)
    """Seconds of each step, passed and of this process's processors, by block; the first block is watched."""

    def __post_init__(self) -> None:
        self._now: Heartbeat = NoHeartbeat()
        self._spent_s = time.process_time()
        self._next_block()

    def _next_block(self) -> None:
        on = len(self.blocks_s) % 2 == 0
        self._now = self.watched if on else NoHeartbeat()
        self.turn(on)
        self.blocks_s.append([])

    def report(self, metrics: dict[str, float]) -> None:
        """Take the time of a step."""
        spent_s = time.process_time()
        self.blocks_s[-1].append((metrics["step_s"], spent_s - self._spent_s))
        self._spent_s = spent_s
        if len(self.blocks_s[-1]) == BLOCK_STEPS:
            self._next_block()

    def save(self, checkpoint: Path | None) -> None:
        """Nothing depends on checkpoints."""

    def should_stop(self) -> bool:
        """Never."""
        return False

    def enter(self, phase: Phase) -> None:
        """As in `Heartbeat`, and so are the others."""
        self._now.enter(phase)

    def enter_collective(self) -> None:
        """Pass on."""
        self._now.enter_collective()

    def pulse(self) -> None:
        """Pass on."""
        self._now.pulse()

    def stepped(self, step: int) -> None:
        """Pass on."""
        self._now.stepped(step)

    def count_oom(self) -> None:
        """Pass on."""
        self._now.count_oom()

    def finish(self) -> None:
        """Pass on."""
        self._now.finish()


def watched_and_unwatched_s(distilled: Path, scratch: Path, pairs: int) -> dict[str, list[list[float]]]:
    """Seconds of a watched block of steps and of the unwatched one after it, for each pair of blocks.

    `passed` is what a clock on the wall says, which depends on other work on the machine too; `processor` is
    what the rank's own process took.
    """
    import psutil
    import torch

    from eagleray.training.loop import train

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    scratch.mkdir(parents=True, exist_ok=True)
    spawn = multiprocessing.get_context("spawn")
    on, ended = spawn.Event(), spawn.Event()
    looker = spawn.Process(target=_look, args=(scratch, on, ended), daemon=True)
    looker.start()
    heartbeat = HeartbeatFile(scratch, 0, started_s=psutil.Process().create_time())
    switch = Switch(watched=heartbeat, turn=lambda watched: on.set() if watched else on.clear())
    train(_job(distilled, scratch, switch, steps=2 * BLOCK_STEPS * (pairs + UNCOUNTED_BLOCKS)))
    ended.set()
    looker.join()
    blocks_s = [block for block in switch.blocks_s if len(block) == BLOCK_STEPS]
    kinds = {}
    for column, kind in enumerate(("passed", "processor")):
        sums_s = [sum(step_s[column] for step_s in block) for block in blocks_s]
        kinds[kind] = [list(pair) for pair in zip(sums_s[0::2], sums_s[1::2], strict=True)][UNCOUNTED_BLOCKS:]
    return kinds


def _look(folder: Path, on: Any, ended: Any) -> None:
    config = WatchdogConfig()
    agent, watcher = NodeAgent(folder), Watcher(1, config)
    while not ended.wait(config.poll_s):
        if on.is_set():
            watcher.observe(agent.look())


def _job(distilled: Path, scratch: Path, switch: Switch, *, steps: int) -> "TrainingJob":
    import torch

    from eagleray.cluster.context import open_run
    from eagleray.corpus.dataset import read_dataset
    from eagleray.drafters.catalog import build_trainable_drafter
    from eagleray.targets.feature_store import FeatureStore, feature_dtype
    from eagleray.targets.heads import load_heads
    from eagleray.training.backends.catalog import open_backend
    from eagleray.training.checkpoint import CheckpointFolder
    from eagleray.training.features import StoredFeatures
    from eagleray.training.loop import TrainingJob
    from eagleray.training.rows import TrainingRows
    from eagleray.training.vocabulary import supervised_counts

    changed = {"epochs": NEVER, "max_steps": steps, "checkpoint_every_steps": NEVER, "replay_samples": 0}
    run = open_run(
        load_recipe(
            RECIPE,
            (
                *SMALL,
                f"run.root={distilled}",
                *(f"drafters.{LABEL}.training.{name}={value}" for name, value in changed.items()),
            ),
        ),
        lambda _: None,
    )
    section = run.recipe.drafters[LABEL]
    heads = load_heads(run.target_folder, getattr(torch, run.recipe.target.dtype))
    store = FeatureStore(run.folder.features, run.feature_layers, feature_dtype(run.recipe.feature_store))
    layers = section.drafter.tapped_layers(run.geometry.num_layers)
    samples = read_dataset(run.dataset)[1]
    drafter = build_trainable_drafter(
        section.drafter, heads, supervised_counts(samples, run.geometry.vocab_size)
    )
    return TrainingJob(
        config=section.training,
        backend=open_backend(drafter, section.training),
        rows=TrainingRows(samples, section.training),
        held_out=(),
        source=StoredFeatures(store, layers, cache_bytes=2**30),
        checkpoints=CheckpointFolder(scratch / "checkpoints", 1),
        reporter=switch,
        fingerprint="overhead",
        heartbeat=switch,
    )

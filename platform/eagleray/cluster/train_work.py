"""What the processes of a training must know, and the samples that each of them opens from it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eagleray.corpus.packed import PackedSamples
from eagleray.corpus.sample import Sample
from eagleray.recipe.sections import TrainedDrafterConfig
from eagleray.settings import Settings
from eagleray.targets.config import FeatureStoreConfig, TargetConfig
from eagleray.training.config import TrainingConfig
from eagleray.training.held_out import keep_out
from eagleray.training.preflight import trainable


class TrainWork(Settings):
    """What a training worker must know."""

    target: TargetConfig
    drafter: TrainedDrafterConfig
    training: TrainingConfig
    samples: Path
    """Packed samples of the dataset, on a path that all workers see."""
    features: Path
    feature_layers: tuple[int, ...]
    feature_store: FeatureStoreConfig
    run: Path
    """Folder of this training: checkpoints and metrics."""
    export: Path
    mirror: str | None = None
    """Storage address of this training's copies of checkpoints."""
    heartbeats: Path | None = None
    """Where ranks keep their heartbeats, on their own machine; None: nobody watches."""
    profile: dict[str, Any]
    """What the exported drafter's profile says of the regime it was trained in."""
    fingerprint: str

    def split(self) -> tuple[Sequence[Sample], list[Sample]]:
        """Samples to train on, and those kept out; the same in every process."""
        packed = trainable(PackedSamples(self.samples), self.training)
        return keep_out(packed, self.training.replay_samples)

"""The sections of a recipe, put together from the rooms that own them.

Adding a drafter or an engine adds one member to a union here.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from eagleray.corpus.config import PromptsConfig
from eagleray.distillation.config import DistilConfig
from eagleray.drafters.dflash.config import DFlashConfig
from eagleray.drafters.dflash2.config import DFlash2Config
from eagleray.drafters.eagle.config import EagleConfig
from eagleray.drafters.eagle3.config import Eagle3Config
from eagleray.drafters.medusa.config import MedusaConfig
from eagleray.drafters.mtp.config import MTPConfig
from eagleray.drafters.prompt_lookup.config import PromptLookupConfig
from eagleray.engines.config import DistilEngineConfig
from eagleray.engines.native.config import NativeEngineConfig
from eagleray.evaluation.config import EvaluationConfig
from eagleray.settings import Settings
from eagleray.targets.config import FeatureStoreConfig, TargetConfig
from eagleray.training.config import TrainingConfig
from eagleray.tuning.config import ServingSweep, TrainingSweep

TrainedDrafterConfig = Annotated[
    EagleConfig | Eagle3Config | DFlashConfig | DFlash2Config | MedusaConfig | MTPConfig,
    Field(discriminator="name"),
]
UntrainedDrafterConfig = PromptLookupConfig

NOT_LEARNED = {
    "start",
    "watchdog",
    "backend",
    "zero",
    "stream",
    "deterministic",
    "workers",
    "min_workers",
    "wait_for_machines_s",
    "micro_batch_size",
    "pack",
    "recompute_activations",
    "feature_cache_gib",
    "keep_checkpoints",
    "checkpoint_every_steps",
    "mirror",
}
"""Training settings that a run may change on its way: they change no step, rounding aside."""


class RunConfig(Settings):
    """Where a run keeps everything it makes."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Folder of the run under `root`; the same name continues the same run."""

    root: Path = Path("runs")
    """Parent of all runs. On a cluster of several machines: a path that all of them share."""


class MachinesConfig(Settings):
    """Machines that a recipe is written for. `jobs.plan` checks against them; a run takes what Ray has."""

    nodes: int = Field(default=1, gt=0)
    """Machines."""

    gpus_per_node: int = Field(default=0, ge=0)
    """GPUs of each; 0: training runs on CPUs."""

    cpus_per_node: int = Field(gt=0)
    """Cores of each."""

    gpu_memory_gib: float | None = Field(default=None, gt=0)
    """Memory of one GPU."""

    host_memory_gib: float = Field(gt=0)
    """Memory of one machine."""

    @model_validator(mode="after")
    def _gpus_have_memory(self) -> "MachinesConfig":
        if self.gpus_per_node and self.gpu_memory_gib is None:
            raise ValueError("gpu_memory_gib is missing; say how much memory one GPU has")
        return self


class DrafterSection(Settings):
    """One drafter of a recipe and how it is trained."""

    drafter: TrainedDrafterConfig
    training: TrainingConfig

    def what_is_learned(self) -> dict[str, Any]:
        """What a checkpoint belongs to: all that a step learns from, and nothing of how a run is watched,
        how its steps are shared out, and what it began from."""
        return self.model_dump(mode="json", exclude={"training": NOT_LEARNED})


class PipelineRecipe(Settings):
    """From prompts to judged drafters."""

    kind: Literal["pipeline"]
    run: RunConfig
    target: TargetConfig = TargetConfig()
    engine: NativeEngineConfig = NativeEngineConfig()
    """Runs the target in the workers that evaluate, and in those that distil unless `distil.engine` does."""
    prompts: PromptsConfig
    distil: DistilConfig = DistilConfig()
    feature_store: FeatureStoreConfig = FeatureStoreConfig()
    drafters: dict[str, DrafterSection] = Field(min_length=1)
    """Label -> drafter. The label names the drafter in folders and reports."""
    baselines: dict[str, UntrainedDrafterConfig] = {}
    """Label -> training-free drafter, evaluated beside the trained ones."""
    evaluation: EvaluationConfig = EvaluationConfig()
    machines: MachinesConfig | None = None
    """What the recipe is planned for. None: the plan checks memory and placement against nothing."""

    @property
    def distil_engine(self) -> DistilEngineConfig:
        """What runs the target for distilling."""
        return self.distil.engine or self.engine

    @field_validator("drafters", "baselines")
    @classmethod
    def _labels_are_names(cls, value: dict[str, Settings]) -> dict[str, Settings]:
        for label in value:
            if not label.isidentifier():
                raise ValueError(f"label {label!r} must be letters, digits and underscores")
        return value

    @model_validator(mode="after")
    def _a_started_server_fits(self) -> "PipelineRecipe":
        engine = self.distil_engine
        if engine.name != "vllm":
            return self
        asked = (one.max_new_tokens or 0 for one in self.distil.by_category.values())
        if (longest := max(self.distil.max_new_tokens, *asked, 0)) >= engine.max_length:
            raise ValueError(
                f"distil asks for answers of {longest} tokens and distil.engine.max_length is "
                f"{engine.max_length}, which leaves no room for prompts; raise max_length"
            )
        if not self.distil.capture_features:
            return self
        if engine.prefix_caching:
            raise ValueError(
                "distil.engine.prefix_caching is true, and features are captured where they are computed, "
                "not where they are found again; set it, or distil.capture_features, to false"
            )
        if engine.dtype != self.target.dtype:
            raise ValueError(
                f"distil.engine.dtype is {engine.dtype} and target.dtype {self.target.dtype}; features are "
                "captured in the numbers that the target has everywhere else, so make them the same"
            )
        return self

    @model_validator(mode="after")
    def _labels_differ(self) -> "PipelineRecipe":
        if both := set(self.drafters) & set(self.baselines):
            raise ValueError(f"label {sorted(both)[0]!r} names a drafter and a baseline; choose another")
        return self


class SweepRecipe(Settings):
    """A search for the best setting of what a pipeline recipe describes."""

    kind: Literal["sweep"]
    run: RunConfig
    pipeline: Path
    """The pipeline recipe whose target, engine, prompts and drafters are tuned; its run has made them."""
    overrides: tuple[str, ...] = ()
    """Changes of that recipe, as on a command line: `run.root=/shared/runs`."""
    serving: ServingSweep | None = None
    """Search depths and blocks of its trained drafters."""
    training: TrainingSweep | None = None
    """Search how its drafters are trained, on its dataset."""

    @model_validator(mode="after")
    def _something_is_searched(self) -> "SweepRecipe":
        if self.serving is None and self.training is None:
            raise ValueError("give a section serving, a section training, or both")
        return self

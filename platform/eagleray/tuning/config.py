"""What a sweep searches, and how: the sections of a sweep recipe. Checked on paper, without optuna."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from eagleray.evaluation.config import BootstrapConfig
from eagleray.settings import Settings

Scalar = bool | int | float | str | None

PLAIN = "plain"
"""The label of decoding without a drafter."""

SERVING_PARAMETERS = frozenset({"depth", "adaptive", "block_size", "tree_nodes", "tree_top_k"})

Objective = Literal["tokens_per_s", "tau", "goodput"]


class _Conditional(Settings):
    when: dict[str, tuple[Scalar, ...]] = {}
    """Earlier parameters of the same drafter, and the values for which this one exists. Empty: always."""


class Choice(_Conditional):
    """One of a few values without an order."""

    kind: Literal["choice"] = "choice"
    values: tuple[Scalar, ...] = Field(min_length=1)
    """What there is to choose from."""


class Integer(_Conditional):
    """A whole number, both ends included."""

    kind: Literal["integer"] = "integer"
    low: int
    """Smallest value."""
    high: int
    """Largest value."""
    step: PositiveInt = 1
    """Distance of neighbouring values."""
    log: bool = False
    """Search by ratios, not by differences; needs `step` 1."""
    below: str | None = None
    """An earlier parameter of the same drafter that this one stays below, e.g. a depth below `block_size`."""

    @model_validator(mode="after")
    def _holds_values(self) -> "Integer":
        if self.low > self.high:
            raise ValueError(f"low {self.low} exceeds high {self.high}")
        if self.log and (self.step != 1 or self.low < 1):
            raise ValueError(f"log needs step 1 and low of 1 or more (step {self.step}, low {self.low})")
        return self


class Real(_Conditional):
    """A real number, both ends included."""

    kind: Literal["real"] = "real"
    low: float = Field(allow_inf_nan=False)
    """Smallest value."""
    high: float = Field(allow_inf_nan=False)
    """Largest value."""
    log: bool = False
    """Search by ratios, not by differences."""

    @model_validator(mode="after")
    def _holds_values(self) -> "Real":
        if self.low > self.high or (self.log and self.low <= 0):
            raise ValueError(
                f"low {self.low} must not exceed high {self.high}, and be above 0 where log is set"
            )
        return self


Parameter = Annotated[Choice | Integer | Real, Field(discriminator="kind")]


class SpaceConfig(Settings):
    """What may be chosen: a drafter, and then the parameters of that drafter."""

    drafters: dict[str, dict[str, Parameter]] = Field(min_length=1)
    """Drafter label -> parameter name -> its values, in the order they are chosen."""

    plain: bool = True
    """Decoding without a drafter is a point of the space too: it is what every drafter has to beat."""

    @model_validator(mode="after")
    def _conditions_look_back(self) -> "SpaceConfig":
        for label, parameters in self.drafters.items():
            if label == PLAIN:
                raise ValueError(f"{PLAIN!r} is decoding without a drafter; choose another label")
            seen: set[str] = set()
            for name, parameter in parameters.items():
                below = parameter.below if isinstance(parameter, Integer) else None
                needed = {*parameter.when, *([below] if below else [])}
                if unknown := sorted(needed - seen):
                    raise ValueError(
                        f"{label}.{name} depends on {unknown[0]!r}, which is no earlier parameter of {label}"
                    )
                if isinstance(parameter, Integer) and below:
                    _check_room(f"{label}.{name}", parameter, parameters[below])
                seen.add(name)
        return self


class Point(Settings):
    """One choice out of a space."""

    drafter: str
    """A label, or `plain`."""
    values: dict[str, Scalar] = {}
    """Parameter name -> value; those that do not exist under this choice are left out."""

    def __hash__(self) -> int:
        return hash((self.drafter, frozenset(self.values.items())))

    @property
    def name(self) -> str:
        """For people: `dflash block_size=8 depth=3`."""
        return " ".join([self.drafter, *(f"{key}={_spell(value)}" for key, value in self.values.items())])


class StudyConfig(Settings):
    """How a space is searched."""

    trials: PositiveInt = 24
    """Points to measure. Points that failed count, repetitions do not. A finite space may end earlier."""

    sampler: Literal["tpe", "random", "exhaustive", "nsga2"] = "tpe"
    """Which point comes next, by Optuna's names. `exhaustive` takes every point of a finite space once."""

    startup_trials: NonNegativeInt = 8
    """Points that `tpe` draws by chance before it looks at what was found; points tried first count."""

    pruner: Literal["none", "median", "successive_halving", "hyperband"] = "none"
    """Which trials of several rungs are ended early, by Optuna's names."""

    reduction_factor: int = Field(default=3, ge=2)
    """Of this many trials at a rung, `successive_halving` and `hyperband` let one go on."""

    seed: NonNegativeInt = 0
    """Drives the sampler: the same seed and outcomes give the same order of points."""

    workers: PositiveInt = 2
    """Trials at the same time, one process and CPU each. Part of the regime: they share the machine."""

    attempts: PositiveInt = 2
    """How often a trial is begun whose process died, before it counts as failed."""

    time_limit_s: float | None = Field(default=None, gt=0)
    """No trial is begun after this many seconds of a start. None: no limit."""

    storage: str | None = None
    """Optuna storage: a database address such as `postgresql://...`. None: a journal file in
    the run's folder."""

    warm_start: tuple[Path, ...] = ()
    """Result files (`best_*.json`) of earlier sweeps, in other regimes too: their best points are tried
    early."""

    bootstrap: BootstrapConfig = BootstrapConfig()
    """Confidence intervals over prompts."""


class ServingMeasure(Settings):
    """How a serving point is measured."""

    prompts: PositiveInt = 6
    """Held-out prompts of each workload; fewer where fewer are held out."""

    concurrency: PositiveInt = 1
    """Prompts that are decoded together."""

    new_tokens: PositiveInt = 24
    """Longest answer."""

    latency_bound_ms: float = Field(default=100.0, gt=0)
    """For `goodput`: a request counts that takes at most this long per token on average."""


class ServingSweep(Settings):
    """Search what a finished drafter is served with; nothing is trained."""

    space: SpaceConfig
    """Parameters: `depth` (draft tokens a cycle); `adaptive` (up to that depth, as the engine chooses); for
    block drafters `block_size` (slots that are run, the anchor included); for drafters that branch
    `tree_nodes` and `tree_top_k`."""

    default: Point
    """What is served today. It is tried first, and a winner has to beat it."""

    first: tuple[Point, ...] = ()
    """Further points to try before the sampler chooses."""

    workloads: dict[str, tuple[str, ...]] = Field(min_length=1)
    """Name -> families of held-out prompts. Each has a study of its own: the best depth is another one."""

    objectives: tuple[Objective, ...] = Field(default=("tokens_per_s",), min_length=1)
    """What is maximised; several give a Pareto front."""

    measure: ServingMeasure = ServingMeasure()
    """How a point is measured."""

    confirm_rounds: PositiveInt = 2
    """Times that the best, the runner-up and the default are measured again, interleaved, at the end."""

    study: StudyConfig = StudyConfig()
    """How the space is searched."""

    @model_validator(mode="after")
    def _parameters_are_known(self) -> "ServingSweep":
        for label, parameters in self.space.drafters.items():
            if unknown := sorted(set(parameters) - SERVING_PARAMETERS):
                raise ValueError(
                    f"{label}.{unknown[0]} is no serving parameter; there are "
                    f"{', '.join(sorted(SERVING_PARAMETERS))}"
                )
            if not isinstance(parameters.get("depth"), Integer):
                raise ValueError(f"{label} needs an integer parameter depth")
        return self


class TrainingSweep(Settings):
    """Search how a drafter is trained; each that ends is scored at its best serving point."""

    space: SpaceConfig
    """Parameters by their place in the drafter's section of the recipe (`training.learning_rate`,
    `drafter.block_size`), and `data_share`, the share of the samples that is trained on."""

    first: tuple[Point, ...] = ()
    """Points to try before the sampler chooses."""

    cpu_s: float = Field(default=60.0, gt=0)
    """CPU seconds of one whole training."""

    rungs: PositiveInt = 3
    """Looks at a training, the last at its end, each other at 1 / `study.reduction_factor` of the next."""

    workload: tuple[str, ...] = Field(min_length=1)
    """Families of held-out prompts that trained drafters are scored on."""

    depths: tuple[PositiveInt, ...] = Field(default=(1, 3, 5, 7), min_length=1)
    """Serving depths that a trained drafter is scored at; those it cannot draft are left out."""

    measure: ServingMeasure = ServingMeasure()
    """How they are measured."""

    study: StudyConfig = StudyConfig(trials=8, pruner="successive_halving")
    """How the space is searched."""

    @model_validator(mode="after")
    def _plain_is_not_trained(self) -> "TrainingSweep":
        if self.space.plain:
            raise ValueError("space.plain must be false: plain decoding has nothing to train")
        return self


def _check_room(place: str, parameter: Integer, bound: Parameter) -> None:
    values = bound.values if isinstance(bound, Choice) else (bound.low,)
    tight = [value for value in values if not isinstance(value, int) or value <= parameter.low]
    if tight:
        raise ValueError(
            f"{place} must stay below {parameter.below}, which can be {tight[0]!r}: nothing is left"
        )


def _spell(value: Scalar) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)

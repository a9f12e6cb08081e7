"""A serving sweep on Ray: processes that hold target and drafters, and studies that send them points."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagleray.cluster.context import run_root
from eagleray.cluster.crew import Crew
from eagleray.cluster.evaluate import load_sources
from eagleray.cluster.measuring import MeasuringWork, open_regime, open_scale, target_facts
from eagleray.cluster.own_gpus import hide_other_gpus
from eagleray.corpus.chat import (
    ChatTemplate,
    RenderedPrompt,
    render_prompts,
)
from eagleray.corpus.prompt import Prompt
from eagleray.corpus.prompt_files import parse_prompt
from eagleray.drafters.folder import CONFIG, drafter_hash
from eagleray.engines.catalog import build_engine
from eagleray.errors import ConfigError, DataError
from eagleray.evaluation.interleaved import GroupTimes
from eagleray.evaluation.regime import Regime
from eagleray.monitoring.catalogue import SWEEP, SWEEP_SPEEDUP, SWEEP_TRIALS
from eagleray.monitoring.ray_metrics import RayMetrics
from eagleray.recipe.run_folder import RunFolder
from eagleray.recipe.sections import PipelineRecipe, SweepRecipe, UntrainedDrafterConfig
from eagleray.settings import fingerprint
from eagleray.targets.loading import load_tokenizer, resolve_target
from eagleray.tuning.config import Point, ServingSweep
from eagleray.tuning.outcome import Outcome
from eagleray.tuning.result import Result, warm_points
from eagleray.tuning.serving import Measured, MeasureTask, ServingPoint, ServingTrials, draft_setting
from eagleray.tuning.space import Space
from eagleray.tuning.storage import one_driver, open_storage
from eagleray.tuning.study import Proposal, Study, TrialView, check_contract, terms


class ServingWork(MeasuringWork):
    """What a measuring process must know."""

    drafters: dict[str, Path]
    drafter_hashes: dict[str, str]
    baselines: dict[str, UntrainedDrafterConfig]


@dataclass(frozen=True, kw_only=True)
class SweepProgress:
    """What a live view shows."""

    studies: Mapping[str, Sequence[TrialView]]
    total: int
    """Trials that are planned, in all studies."""
    elapsed_s: float
    left_s: float | None
    """None until a trial has ended."""


SweepListener = Callable[[SweepProgress], None]


@dataclass(frozen=True, kw_only=True)
class SweepRun:
    """A serving sweep, opened and checked."""

    folder: Path
    memory: Path
    """Results of all sweeps of this root, by regime."""
    name: str
    sweep: ServingSweep
    work: ServingWork
    workloads: dict[str, tuple[Prompt, ...]]


class ServingActor:
    """Holds the target and every drafter, and measures points."""

    def __init__(self, work: ServingWork, workloads: Mapping[str, Sequence[Prompt]]):
        hide_other_gpus()
        folder = resolve_target(work.target)
        self.work = work
        self.engine = build_engine(work.engine, folder, work.target.dtype)
        self.sources = load_sources(work.drafters, work.baselines, self.engine.decoder.heads)
        chat = ChatTemplate(load_tokenizer(folder), work.template_arguments)
        self.prompts = {name: render_prompts(chat, prompts)[0] for name, prompts in workloads.items()}

    def regime(self, workload: str) -> Regime:
        """Where this process measures."""
        return self.work.regime(workload, self.prompts[workload], self.work.drafter_hashes)

    def plain(self, workload: str) -> tuple[int, float]:
        """Tokens and seconds of plain decoding, prefill excluded."""
        groups = self._measure(self.prompts[workload], ())
        return sum(group.plain.tokens for group in groups), sum(group.plain.decode_s for group in groups)

    def run(self, task: MeasureTask) -> Measured:
        """Measure the points of a task."""
        start_s = time.perf_counter()
        prompts = self.work.pick(self.prompts[task.workload], task.groups)
        groups = self._measure(prompts, task.points)
        return Measured(groups=groups, wall_s=time.perf_counter() - start_s)

    def _measure(self, prompts: Sequence[RenderedPrompt], points: Sequence[Point]) -> tuple[GroupTimes, ...]:
        return self.work.interleaved(
            self.engine, prompts, [draft_setting(point, self.sources) for point in points]
        )


@dataclass(kw_only=True)
class _Trials:
    """A study as the crew sees it; tells the dashboard and the live view."""

    trials: ServingTrials
    may_begin: Callable[[], bool]
    metrics: RayMetrics
    walls_s: list[float] = field(default_factory=list)

    def next_task(self) -> tuple[Proposal, MeasureTask] | None:
        return self.trials.next_task() if self.may_begin() else None

    def done(self, token: Proposal, outcome: Measured) -> Outcome:
        found = self.trials.done(token, outcome)
        self.walls_s.append(outcome.wall_s)
        self._count("complete" if found.feasible else "infeasible")
        best = self.trials.ranking().best
        if best is not None:
            tags = {"study": self.trials.study.name}
            self.metrics.set(SWEEP_SPEEDUP, best.figures["speedup"].value, tags)
        return found

    def failed(self, token: Proposal, reason: str) -> None:
        self.trials.study.fail(token, reason)
        self._count("failed")

    def lost(self, token: Proposal, reason: str) -> None:
        self.trials.study.fail(token, reason, lost=True)
        self._count("lost")

    def _count(self, state: str) -> None:
        self.metrics.add(SWEEP_TRIALS, 1, {"study": self.trials.study.name, "state": state})


def open_serving_sweep(recipe: SweepRecipe, pipeline: PipelineRecipe) -> SweepRun:
    """Find what a serving sweep measures, and check on paper what can be: no Ray, no target in memory.

    Raises:
        DataError: The pipeline has not made its prompts or drafters; says which command does.
        ConfigError: A depth or block does not fit a drafter, a point is not in the space, or the study was
            begun under other terms.
    """
    assert recipe.serving is not None
    sweep = recipe.serving
    base = RunFolder(run_root(pipeline.run.root) / pipeline.run.name)
    trained = [label for label in sweep.space.drafters if label in pipeline.drafters]
    baselines = {
        label: config for label, config in pipeline.baselines.items() if label in sweep.space.drafters
    }
    for label in trained:
        if not (base.drafter(label) / CONFIG).is_file():
            raise DataError(missing(f"the drafter {label} in {base.drafter(label)}", recipe))
    check_fit(sweep, pipeline)
    space = Space(sweep.space)
    for point in (sweep.default, *sweep.first):
        space.params(point)
    folder = run_root(recipe.run.root) / recipe.run.name
    run = SweepRun(
        folder=folder,
        memory=run_root(recipe.run.root) / "memory",
        name=recipe.run.name,
        sweep=sweep,
        work=ServingWork(
            **target_facts(pipeline),
            drafters={label: base.drafter(label) for label in trained},
            drafter_hashes={
                **{label: drafter_hash(base.drafter(label)) for label in trained},
                **{label: fingerprint(config) for label, config in baselines.items()},
            },
            baselines=baselines,
            measure=sweep.measure,
            workers=sweep.study.workers,
        ),
        workloads=read_workloads(sweep.workloads, sweep.measure.prompts, base, recipe),
    )
    storage = open_storage(sweep.study.storage, folder)
    for workload in sweep.workloads:
        check_contract(storage, study_name(run, workload), _terms(run))
    return run


def run_serving_sweep(run: SweepRun, listener: SweepListener) -> dict[str, Result]:
    """Search, then measure the best of each workload against its runner-up and the default. Needs a Ray.

    Continues a sweep that was stopped: what was measured stays, what was under way is measured again.
    """
    start_s = time.monotonic()
    with one_driver(run.folder):
        crew = Crew(
            ServingActor,
            (run.work, run.workloads),
            run.sweep.study.workers,
            {"num_cpus": 1, "max_restarts": 0},
        )
        limit_s = run.sweep.study.time_limit_s

        def may_begin() -> bool:
            return limit_s is None or time.monotonic() - start_s < limit_s

        metrics = RayMetrics(SWEEP)
        sources = [
            _Trials(trials=_open_trials(run, workload, crew), may_begin=may_begin, metrics=metrics)
            for workload in run.workloads
        ]
        crew.work(sources, lambda: listener(_progress(run, sources, start_s)))
        results = {source.trials.workload: _conclude(run, source.trials, crew) for source in sources}
        crew.dismiss()
    return results


def study_name(run: SweepRun, workload: str) -> str:
    """Of a workload's study in the storage."""
    return f"{run.name}/{workload}"


def _terms(run: SweepRun) -> dict[str, Any]:
    measure = run.sweep.measure.model_dump(mode="json")
    return terms(Space(run.sweep.space), run.sweep.objectives, measure=measure)


def _open_trials(run: SweepRun, workload: str, crew: Crew) -> ServingTrials:
    sweep = run.sweep
    regime = open_regime(crew, workload)
    study = Study(
        open_storage(sweep.study.storage, run.folder),
        study_name(run, workload),
        Space(sweep.space),
        sweep.study,
        objectives=sweep.objectives,
        contract={**_terms(run), "regime": regime.model_dump(mode="json")},
    )
    study.enqueue((sweep.default, *sweep.first, *warm_points(sweep.study.warm_start, study.space)))
    scale = open_scale(study, crew, sweep.measure, workload)
    return ServingTrials(workload=workload, study=study, sweep=sweep, regime=regime, scale=scale)


def _conclude(run: SweepRun, trials: ServingTrials, crew: Crew) -> Result:
    tasks = trials.confirm_tasks(run.work.num_groups(run.workloads[trials.workload]))
    confirmation = trials.confirm(tasks, crew.all(tasks)) if tasks else None
    return trials.result(confirmation)


def _progress(run: SweepRun, sources: Sequence[_Trials], start_s: float) -> SweepProgress:
    studies = {source.trials.workload: source.trials.study.views() for source in sources}
    walls_s = [wall_s for source in sources for wall_s in source.walls_s]
    ended = sum(view.state != "running" for views in studies.values() for view in views)
    total = sum(source.trials.study.planned for source in sources)
    left_s = None
    if walls_s:
        left_s = (total - ended) * sum(walls_s) / len(walls_s) / run.sweep.study.workers
    return SweepProgress(studies=studies, total=total, elapsed_s=time.monotonic() - start_s, left_s=left_s)


def read_workloads(
    workloads: Mapping[str, Sequence[str]], count: int, base: RunFolder, recipe: SweepRecipe
) -> dict[str, tuple[Prompt, ...]]:
    """The first held-out prompts of each workload's families, as the pipeline's run drew them.

    Raises:
        DataError: There are none.
    """
    path = base.held_out_prompts
    if not path.is_file():
        raise DataError(missing(f"the held-out prompts in {path}", recipe))
    prompts = [parse_prompt(line) for line in path.read_bytes().splitlines()]
    found = {
        name: tuple(prompt for prompt in prompts if prompt.category in families)[:count]
        for name, families in workloads.items()
    }
    for name, chosen in found.items():
        if not chosen:
            there = ", ".join(sorted({prompt.category for prompt in prompts}))
            raise DataError(
                f"Workload {name} takes {', '.join(workloads[name])}; {path} holds prompts of {there}."
            )
    return found


def missing(what: str, recipe: SweepRecipe) -> str:
    """What to say when the pipeline has not run."""
    command = (
        "make demo"
        if recipe.pipeline == Path("configs/demo.yaml")
        else (f"python -m jobs.pipeline --recipe {recipe.pipeline}")
    )
    return f"The sweep needs {what}, which is not there. Run `{command}` first."


def check_fit(sweep: ServingSweep, pipeline: PipelineRecipe) -> None:
    """Hold depths and blocks of the space to what each drafter can do.

    Raises:
        ConfigError: One is beyond it.
    """
    configs = {**{label: part.drafter for label, part in pipeline.drafters.items()}, **pipeline.baselines}
    for point in Space(sweep.space).points():
        if not point.values:
            continue
        config = configs[point.drafter]
        trained, max_depth = getattr(config, "block_size", None), config.max_depth
        serving = ServingPoint.model_validate(point.values)
        if serving.block_size is not None and (trained is None or serving.block_size > trained):
            raise ConfigError(
                f"Point {point.name!r} runs blocks of {serving.block_size} slots; {point.drafter} was "
                f"trained with {trained or 'no blocks'}. Change its block_size in serving.space."
            )
        if max_depth is not None and serving.depth > max_depth:
            raise ConfigError(
                f"Point {point.name!r} is deeper than the {max_depth} tokens that {point.drafter} can draft. "
                "Lower its depth.high in serving.space."
            )

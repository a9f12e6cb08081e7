"""A training sweep on Ray: processes that hold target, dataset and features, and train trials rung by rung.

Every rung is on disk before it is told, so a trial goes on in whatever process is free, and after a kill.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from eagleray.cluster.context import run_root
from eagleray.cluster.crew import Crew
from eagleray.cluster.measuring import MeasuringWork, open_regime, open_scale, target_facts
from eagleray.cluster.own_gpus import hide_other_gpus
from eagleray.cluster.sweep import SweepListener, SweepProgress, missing, read_workloads
from eagleray.corpus.chat import ChatTemplate, render_prompts
from eagleray.corpus.dataset import read_dataset
from eagleray.corpus.prompt import Prompt
from eagleray.corpus.storage import open_storage as open_dataset
from eagleray.drafters.catalog import build_trainable_drafter
from eagleray.drafters.folder import drafter_hash, export_drafter, load_drafter
from eagleray.engines.base import DraftSetting
from eagleray.engines.catalog import build_engine
from eagleray.errors import ConfigError, DataError
from eagleray.evaluation.interleaved import GroupTimes
from eagleray.evaluation.regime import Regime
from eagleray.monitoring.catalogue import SWEEP, SWEEP_TRIALS
from eagleray.monitoring.ray_metrics import RayMetrics
from eagleray.recipe.run_folder import RunFolder
from eagleray.recipe.sections import DrafterSection, PipelineRecipe, SweepRecipe
from eagleray.settings import validate
from eagleray.targets.config import FeatureStoreConfig
from eagleray.targets.feature_store import FeatureStore, feature_dtype
from eagleray.targets.geometry import TargetGeometry
from eagleray.targets.loading import load_tokenizer, resolve_target
from eagleray.training.features import StoredFeatures
from eagleray.training.held_out import keep_out
from eagleray.training.rungs import RungJob, train_rung
from eagleray.training.vocabulary import supervised_counts
from eagleray.tuning.config import Point, TrainingSweep
from eagleray.tuning.result import Result, warm_points
from eagleray.tuning.space import Space
from eagleray.tuning.storage import one_driver, open_storage
from eagleray.tuning.study import Study, check_contract, terms
from eagleray.tuning.training import (
    DATA_SHARE,
    OBJECTIVE,
    Entry,
    RungDone,
    RungTask,
    Scored,
    Task,
    Token,
    TrainingTrials,
    rung_ends_s,
    with_values,
)

MAX_CHECKED_POINTS = 2000
"""Corners of a space that are held to the recipe's schema before anything runs."""


class TrainingWork(MeasuringWork):
    """What a training process must know."""

    dataset: str
    """Address of the dataset."""
    features: Path
    feature_layers: tuple[int, ...]
    feature_store: FeatureStoreConfig
    sections: dict[str, DrafterSection]
    ends_s: tuple[float, ...]
    trials: Path
    """Parent of one folder per trial."""

    def section(self, point: Point) -> DrafterSection:
        """The section of a point; one process trains it.

        Raises:
            ConfigError: Its values do not go together.
        """
        content = with_values(self.sections[point.drafter].model_dump(mode="json"), point)
        content["training"]["workers"] = 1
        return validate(DrafterSection, content, f"Point {point.name!r}")

    def folder(self, trial: int) -> Path:
        """Rungs and drafter of a trial."""
        return self.trials / f"{trial:04d}"


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """A training sweep, opened and checked."""

    folder: Path
    name: str
    sweep: TrainingSweep
    work: TrainingWork
    prompts: tuple[Prompt, ...]
    dataset_hash: str


class TrainingActor:
    """Trains rungs and measures what came of them."""

    def __init__(self, work: TrainingWork, prompts: Sequence[Prompt]):
        hide_other_gpus()
        # As in training workers: denormal numbers make CPUs slow.
        torch.set_flush_denormal(True)
        folder = resolve_target(work.target)
        self.work = work
        self.engine = build_engine(work.engine, folder, work.target.dtype)
        self.heads = self.engine.decoder.heads
        self.samples = read_dataset(open_dataset(work.dataset))[1]
        self.store = FeatureStore(work.features, work.feature_layers, feature_dtype(work.feature_store))
        self.sources: dict[tuple[int, ...], StoredFeatures] = {}
        chat = ChatTemplate(load_tokenizer(folder), work.template_arguments)
        self.prompts = render_prompts(chat, prompts)[0]

    def regime(self) -> Regime:
        """Where this process measures. The drafters are what is searched, so none is named."""
        return self.work.regime("scored", self.prompts, {})

    def plain(self) -> tuple[int, float]:
        """Tokens and seconds of plain decoding, prefill excluded."""
        groups = self._score((), None)
        return sum(group.plain.tokens for group in groups), sum(group.plain.decode_s for group in groups)

    def run(self, task: Task) -> RungDone | Scored:
        """Train a rung, or measure drafters."""
        if isinstance(task, RungTask):
            return self._train(task)
        start_s = time.perf_counter()
        groups = self._score(task.entries, task.groups)
        return Scored(groups=groups, wall_s=time.perf_counter() - start_s)

    def _train(self, task: RungTask) -> RungDone:
        work, section = self.work, self.work.section(task.point)
        share = float(task.point.values.get(DATA_SHARE) or 1.0)
        samples, held_out = keep_out(self.samples, section.training.replay_samples)
        layers = section.drafter.tapped_layers(self.heads.geometry.num_layers)
        if layers not in self.sources:
            cache_bytes = int(section.training.feature_cache_gib * 2**30)
            self.sources[layers] = StoredFeatures(self.store, layers, cache_bytes=cache_bytes)
        torch.manual_seed(section.training.seed)
        counts_V = supervised_counts(self.samples, self.heads.geometry.vocab_size)
        drafter = build_trainable_drafter(section.drafter, self.heads, counts_V)
        job = RungJob(
            drafter=drafter,
            samples=samples[: max(section.training.global_batch_size, round(len(samples) * share))],
            held_out=held_out,
            source=self.sources[layers],
            config=section.training,
            ends_s=work.ends_s,
            folder=work.folder(task.trial),
        )
        record = train_rung(job, task.rung)
        done = RungDone(**record.model_dump(), max_depth=drafter.max_depth)
        if task.rung < len(work.ends_s) - 1:
            return done
        export = work.folder(task.trial) / "drafter"
        profile = {"target_hash": work.target_hash, "trained_length": section.training.max_length}
        export_drafter(drafter, export, profile)
        return done.model_copy(update={"drafter_hash": drafter_hash(export)})

    def _score(self, entries: Sequence[Entry], chosen: Sequence[int] | None) -> tuple[GroupTimes, ...]:
        prompts = self.work.pick(self.prompts, chosen)
        drafters = {
            trial: load_drafter(self.work.folder(trial) / "drafter", self.heads)
            for trial in {entry.trial for entry in entries}
        }
        drafts = [DraftSetting(source=drafters[entry.trial], depth=entry.depth) for entry in entries]
        return self.work.interleaved(self.engine, prompts, drafts)


@dataclass(kw_only=True)
class _Trials:
    """The study as the crew sees it; tells the dashboard."""

    trials: TrainingTrials
    may_begin: Callable[[], bool]
    metrics: RayMetrics
    ended: set[int] = field(default_factory=set)

    def next_task(self) -> tuple[Token, Task] | None:
        return self.trials.next_task(may_begin=self.may_begin())

    def done(self, token: Token, outcome: RungDone | Scored) -> None:
        self.trials.done(token, outcome)
        self._count()

    def failed(self, token: Token, reason: str) -> None:
        self.trials.failed(token, reason)
        self._count()

    def lost(self, token: Token, reason: str) -> None:
        self.trials.lost(token, reason)
        self._count()

    def _count(self) -> None:
        for view in self.trials.study.views():
            if view.state != "running" and view.number not in self.ended:
                self.ended.add(view.number)
                self.metrics.add(SWEEP_TRIALS, 1, {"study": self.trials.study.name, "state": view.state})


def open_training_sweep(recipe: SweepRecipe, pipeline: PipelineRecipe) -> TrainingRun:
    """Find the dataset and features of the pipeline's run, and hold every corner of the space to the schema.

    Raises:
        DataError: They are not there; says which command makes them.
        ConfigError: Values of the space do not go together, or the study was begun under other terms.
    """
    assert recipe.training is not None
    sweep = recipe.training
    base = RunFolder(run_root(pipeline.run.root) / pipeline.run.name)
    dataset = open_dataset(pipeline.distil.dataset or base.dataset)
    if not dataset.exists("manifest.json") or not base.features.is_dir():
        raise DataError(missing(f"the dataset and features in {base.path}", recipe))
    manifest, samples = read_dataset(dataset)
    num_layers = TargetGeometry.read(resolve_target(pipeline.target)).num_layers
    captured = {
        layer for part in pipeline.drafters.values() for layer in part.drafter.tapped_layers(num_layers)
    }
    folder = run_root(recipe.run.root) / recipe.run.name
    work = TrainingWork(
        **target_facts(pipeline),
        dataset=dataset.address,
        features=base.features,
        feature_layers=tuple(sorted(captured)),
        feature_store=pipeline.feature_store,
        sections={label: pipeline.drafters[label] for label in sweep.space.drafters},
        ends_s=rung_ends_s(sweep),
        measure=sweep.measure,
        workers=sweep.study.workers,
        trials=folder / "trials",
    )
    space = Space(sweep.space)
    for point in sweep.first:
        space.params(point)
    for point in islice(space.corners(), MAX_CHECKED_POINTS):
        section = work.section(point)
        if not keep_out(samples, section.training.replay_samples)[1]:
            raise ConfigError(
                f"Point {point.name!r} keeps no samples for replay (training.replay_samples is "
                f"{section.training.replay_samples} of {len(samples)} samples), and rungs are judged by them."
            )
    run = TrainingRun(
        folder=folder,
        name=recipe.run.name,
        sweep=sweep,
        work=work,
        prompts=read_workloads({"scored": sweep.workload}, sweep.measure.prompts, base, recipe)["scored"],
        dataset_hash=manifest.content_hash(),
    )
    check_contract(open_storage(sweep.study.storage, folder), study_name(run), _terms(run))
    return run


def run_training_sweep(run: TrainingRun, listener: SweepListener) -> Result:
    """Train and score what the study proposes, then measure the best against its runner-up and the default.

    Needs a Ray. Continues what was stopped: no rung that was finished is trained again.
    """
    start_s = time.monotonic()
    sweep = run.sweep
    with one_driver(run.folder):
        options = {"num_cpus": 1, "max_restarts": 0}
        crew = Crew(TrainingActor, (run.work, run.prompts), sweep.study.workers, options)
        trials = _open_trials(run, crew)

        def may_begin() -> bool:
            return sweep.study.time_limit_s is None or time.monotonic() - start_s < sweep.study.time_limit_s

        source = _Trials(trials=trials, may_begin=may_begin, metrics=RayMetrics(SWEEP))
        crew.work([source], lambda: listener(_progress(run, trials, start_s)))
        tasks = trials.confirm_tasks(run.work.num_groups(run.prompts))
        result = trials.result(trials.confirm(tasks, crew.all(tasks)) if tasks else None)
        crew.dismiss()
    return result


def study_name(run: TrainingRun) -> str:
    """Of the study in its storage."""
    return f"{run.name}/training"


def _terms(run: TrainingRun) -> Mapping[str, Any]:
    sections = {label: part.model_dump(mode="json") for label, part in run.work.sections.items()}
    return terms(
        Space(run.sweep.space),
        (OBJECTIVE,),
        measure=run.sweep.measure.model_dump(mode="json"),
        depths=list(run.sweep.depths),
        ends_s=list(run.work.ends_s),
        sections=sections,
        dataset=run.dataset_hash,
    )


def _open_trials(run: TrainingRun, crew: Crew) -> TrainingTrials:
    sweep = run.sweep
    regime = open_regime(crew)
    study = Study(
        open_storage(sweep.study.storage, run.folder),
        study_name(run),
        Space(sweep.space),
        sweep.study,
        objectives=(OBJECTIVE,),
        contract={**_terms(run), "regime": regime.model_dump(mode="json")},
        max_resource=sweep.study.reduction_factor ** (sweep.rungs - 1),
    )
    study.enqueue((*sweep.first, *warm_points(sweep.study.warm_start, study.space)))
    scale = open_scale(study, crew, sweep.measure)
    return TrainingTrials(study=study, sweep=sweep, regime=regime, scale=scale)


def _progress(run: TrainingRun, trials: TrainingTrials, start_s: float) -> SweepProgress:
    views = trials.study.views()
    elapsed_s = time.monotonic() - start_s
    ended = sum(view.state != "running" for view in views)
    total = trials.study.planned
    left_s = elapsed_s / ended * (total - ended) if ended else None
    return SweepProgress(studies={"training": views}, total=total, elapsed_s=elapsed_s, left_s=left_s)

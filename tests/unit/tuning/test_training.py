"""The study of trainings with a pretended trainer: rungs, pruning, kills, and the score of what survives."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eagleray.evaluation.config import BootstrapConfig
from eagleray.evaluation.interleaved import GroupTimes
from eagleray.evaluation.regime import Regime
from eagleray.recipe.loading import load_recipe
from eagleray.tuning.config import Choice, Point, Real, SpaceConfig, StudyConfig, TrainingSweep
from eagleray.tuning.outcome import Scale
from eagleray.tuning.report import trained_cpu_s, write_training_report
from eagleray.tuning.space import Space
from eagleray.tuning.storage import open_storage
from eagleray.tuning.study import Study, terms
from eagleray.tuning.training import (
    OBJECTIVE,
    RungDone,
    RungTask,
    Scored,
    Task,
    TrainingTrials,
    resources,
    rung_ends_s,
    with_values,
)

RATES = tuple(0.001 * step for step in range(1, 10))
SPACE = SpaceConfig(plain=False, drafters={"a": {"training.learning_rate": Choice(values=RATES)}})
BEST = 0.007
MakeGroups = Callable[..., tuple[GroupTimes, ...]]


def quality(point: Point) -> float:
    """Peaks at a learning rate of 0.007."""
    return 2.0 - 100 * abs(float(str(point.values["training.learning_rate"])) - BEST)


class Trainer:
    """Trains at once, keeps records as the disk does, and counts what was trained twice."""

    def __init__(self, groups: MakeGroups):
        self.groups = groups
        self.kept: dict[tuple[int, int], RungDone] = {}
        self.trained: list[tuple[int, int]] = []
        self.points: dict[int, Point] = {}

    def run(self, task: Task) -> RungDone | Scored:
        if not isinstance(task, RungTask):
            qualities = [
                quality(self.points[entry.trial]) - abs(entry.depth - 3) / 10 for entry in task.entries
            ]
            apart = [self.groups([each, each]) for each in qualities]
            together = tuple(
                group.model_copy(update={"settings": tuple(one[place].settings[0] for one in apart)})
                for place, group in enumerate(apart[0])
            )
            return Scored(groups=together, wall_s=1.0)
        self.points[task.trial] = task.point
        place = (task.trial, task.rung)
        if place not in self.kept:
            assert task.rung == 0 or (task.trial, task.rung - 1) in self.kept, (
                "a rung stands on the one before"
            )
            self.trained.append(place)
            self.kept[place] = RungDone(
                replay_tau=quality(task.point) * (task.rung + 1),
                cpu_s=float(3**task.rung),
                steps=3**task.rung,
                supervised_tokens=10,
                loss=1.0,
                max_depth=5,
            )
        return self.kept[place]


def make_sweep(**study: Any) -> TrainingSweep:
    return TrainingSweep(
        space=SPACE,
        cpu_s=9.0,
        rungs=3,
        workload=("code",),
        depths=(1, 3, 5, 7),
        study=StudyConfig(
            **{
                "trials": 9,
                "sampler": "exhaustive",
                "pruner": "successive_halving",
                "bootstrap": BootstrapConfig(resamples=50),
                **study,
            }
        ),
    )


@pytest.fixture
def open_trials(tmp_path: Path, regime: Callable[..., Regime], scale: Scale) -> Callable[..., TrainingTrials]:
    """Each call is another start of the driver."""

    def start(**study: Any) -> TrainingTrials:
        sweep, space = make_sweep(**study), Space(SPACE)
        opened = Study(
            open_storage(None, tmp_path),
            "s",
            space,
            sweep.study,
            objectives=(OBJECTIVE,),
            contract=terms(space, (OBJECTIVE,)),
            max_resource=resources(sweep)[-1],
        )
        return TrainingTrials(study=opened, sweep=sweep, regime=regime(), scale=scale)

    return start


def run(trials: TrainingTrials, trainer: Trainer, tasks: int = 1000, workers: int = 2) -> bool:
    """Do up to so many tasks, two at a time; True if the study came to its end."""
    running: list[tuple[Any, Task]] = []
    for _ in range(tasks):
        while len(running) < workers and (begun := trials.next_task()):
            running.append(begun)
        if not running:
            return True
        token, task = running.pop(0)
        trials.done(token, trainer.run(task))
    return False


def test_rungs_are_a_reduction_factor_apart() -> None:
    assert resources(make_sweep()) == (1, 3, 9)
    assert rung_ends_s(make_sweep()) == (1.0, 3.0, 9.0)


def test_pruning_finds_the_winner_of_the_whole_grid_for_less(
    open_trials: Callable[..., TrainingTrials], groups: MakeGroups
) -> None:
    trials, trainer = open_trials(), Trainer(groups)
    assert run(trials, trainer)
    views = trials.study.views()
    best = max((view for view in views if view.state == "complete"), key=lambda view: view.values)
    assert best.point.values == {"training.learning_rate": BEST}
    assert {view.state for view in views} == {"complete", "pruned"}
    assert trials.cpu_s() == sum(
        max(float(3**rung) for trial, rung in trainer.trained if trial == view.number) for view in views
    )
    assert trials.cpu_s() <= 0.6 * 9 * 9.0


def test_a_trained_drafter_is_scored_at_its_best_depth_that_it_can_draft(
    open_trials: Callable[..., TrainingTrials], groups: MakeGroups
) -> None:
    trials = open_trials(pruner="none")
    assert run(trials, Trainer(groups))
    view = next(v for v in trials.study.views() if v.point.values["training.learning_rate"] == BEST)
    assert view.outcome
    facts = view.outcome["facts"]
    assert facts["depth"] == 3
    assert facts["tokens_per_s_by_depth"] == pytest.approx({"1": 18.0, "3": 20.0, "5": 18.0})
    assert view.values == pytest.approx((20.0,))


@pytest.mark.parametrize("seed", range(6))
def test_kills_lose_no_trial_and_count_none_twice(
    open_trials: Callable[..., TrainingTrials], groups: MakeGroups, seed: int
) -> None:
    trainer, chance = Trainer(groups), random.Random(seed)
    for _ in range(4):
        if run(open_trials(), trainer, tasks=chance.randrange(1, 8)):
            break
    trials = open_trials()
    assert run(trials, trainer)
    views = trials.study.views()
    assert [view.number for view in views] == list(range(9))
    assert sorted(view.point.values["training.learning_rate"] for view in views) == list(RATES)  # type: ignore[type-var]
    assert "running" not in {view.state for view in views}
    assert len(trainer.trained) == len(set(trainer.trained)), "no rung was trained twice"
    best = max((view for view in views if view.state == "complete"), key=lambda view: view.values)
    assert best.point.values == {"training.learning_rate": BEST}


def test_a_lost_process_repeats_its_rung_alone(
    open_trials: Callable[..., TrainingTrials], groups: MakeGroups
) -> None:
    trials, trainer = open_trials(attempts=2), Trainer(groups)
    token, task = trials.next_task() or pytest.fail("nothing to do")
    trials.done(token, trainer.run(task))
    token, task = trials.next_task() or pytest.fail("nothing to do")
    trials.lost(token, "node died")
    again = trials.next_task()
    assert again
    assert again[1] == task
    trials.lost(again[0], "node died")
    assert [view.state for view in trials.study.views()] == ["failed"]


def test_the_best_training_is_measured_again_and_written_as_a_recipe(
    open_trials: Callable[..., TrainingTrials], groups: MakeGroups, tmp_path: Path
) -> None:
    trials, trainer = open_trials(), Trainer(groups)
    assert run(trials, trainer)
    tasks = trials.confirm_tasks(2)
    assert {entry.depth for task in tasks for entry in task.entries} == {3}
    measured = [trainer.run(task) for task in tasks]
    result = trials.result(trials.confirm(tasks, [found for found in measured if isinstance(found, Scored)]))
    assert result.confirmation
    assert result.confirmation.chosen.values == {"training.learning_rate": BEST}
    assert trained_cpu_s(result) == trials.cpu_s()

    pipeline = load_recipe(Path("configs/demo.yaml")).model_dump(mode="json")
    pipeline["drafters"]["a"] = pipeline["drafters"].pop("eagle3")
    page = write_training_report(tmp_path, result, pipeline, budget_s=9.0).read_text()
    assert f"9 trials were trained for {trials.cpu_s():.0f} CPU seconds" in page
    assert "Replay tau" in page
    best = load_recipe(tmp_path / "best_training.yaml")
    assert best.drafters["a"].training.learning_rate == BEST
    assert best.drafters["a"].training.max_steps == 9
    assert best.evaluation.depths == {"a": (3,)}


def test_values_go_to_their_places_in_a_section() -> None:
    section = {"drafter": {"name": "dflash", "block_size": 8}, "training": {"learning_rate": 1e-3}}
    point = Point(drafter="a", values={"drafter.block_size": 4, "data_share": 0.5, "training.seed": 1})
    assert with_values(section, point) == {
        "drafter": {"name": "dflash", "block_size": 4},
        "training": {"learning_rate": 1e-3, "seed": 1},
    }
    assert section["drafter"]["block_size"] == 8


def test_corners_of_a_real_parameter_are_its_ends() -> None:
    config = SpaceConfig(
        plain=False, drafters={"a": {"lr": Real(low=0.1, high=0.2), "n": Choice(values=(1, 2))}}
    )
    assert [tuple(point.values.values()) for point in Space(config).corners()] == [
        (0.1, 1),
        (0.1, 2),
        (0.2, 1),
        (0.2, 2),
    ]

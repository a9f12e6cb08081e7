"""A search replayed on a whole grid that was measured on the embedded target with the demo's drafters."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from eagleray.evaluation.config import BootstrapConfig
from eagleray.evaluation.interleaved import GroupTimes, SettingTime
from eagleray.evaluation.regime import Regime
from eagleray.recipe.loading import load_sweep
from eagleray.tuning.config import Point, ServingSweep
from eagleray.tuning.outcome import Outcome, Scale, summarise, tied
from eagleray.tuning.ranking import Ranking, rank
from eagleray.tuning.report import render_page
from eagleray.tuning.serving import Measured, MeasureTask, ServingTrials
from eagleray.tuning.space import Space
from eagleray.tuning.storage import open_storage
from eagleray.tuning.study import Study, terms

GRID: dict[str, Any] = json.loads((Path(__file__).parent / "fixtures" / "serving_grid.json").read_text())
RECIPE, _ = load_sweep(Path("configs/sweep.yaml"))
assert RECIPE.serving is not None
SWEEP: ServingSweep = RECIPE.serving
WORKLOADS = tuple(SWEEP.workloads)
CONFIG = BootstrapConfig()


def recorded_group(
    index: int, plain_s: float, plain: int, drafted_s: float, drafted: int, cycles: int
) -> Any:
    def time(seconds: float, tokens: int, cycles: int) -> SettingTime:
        return SettingTime(tokens=tokens, cycles=cycles, draft_s=0.0, verify_s=seconds, host_s=0.0)

    return GroupTimes(
        prompts=(f"p{index}",),
        plain=time(plain_s, plain, plain),
        settings=(time(drafted_s, drafted, cycles),),
    )


class Recording:
    """A workload of the grid, answered from what was measured."""

    def __init__(self, workload: str):
        content = GRID[workload]
        self.scale = Scale(plain_tokens_per_s=content["plain_tokens_per_s"], latency_bound_ms=100.0)
        self.groups: dict[Point, list[GroupTimes]] = {
            Point.model_validate(entry["point"]): [
                recorded_group(index, *row) for index, row in enumerate(entry["rows"])
            ]
            for entry in content["points"]
        }

    def outcome(self, point: Point) -> Outcome:
        groups = self.groups[point]
        return summarise(point, groups, regime="r", scale=self.scale, config=CONFIG, wall_s=0.0)

    def ranking(self) -> Ranking:
        """Of the whole grid."""
        outcomes = [self.outcome(point) for point in self.groups]
        return rank(outcomes, ("tokens_per_s",), self.scale, CONFIG)

    def measure(self, task: MeasureTask) -> Measured:
        """Seconds of a point count as if they had been taken beside the plain decoding of the first one."""
        chosen = task.groups if task.groups is not None else range(len(self.groups[task.points[0]]))
        groups = tuple(self._beside(task.points, index) for index in chosen)
        return Measured(groups=groups, wall_s=0.0)

    def _beside(self, points: Sequence[Point], index: int) -> GroupTimes:
        first = self.groups[points[0]][index]
        recorded = [self.groups[point][index] for point in points]
        settings = tuple(
            group.settings[0].model_copy(
                update={"verify_s": group.settings[0].verify_s * first.plain.verify_s / group.plain.verify_s}
            )
            for group in recorded
        )
        return first.model_copy(update={"settings": settings})


def search(folder: Path, workload: str, seed: int, regime: Regime) -> tuple[Recording, ServingTrials]:
    """Run a sweep on a recording to its end."""
    recording = Recording(workload)
    study_config = SWEEP.study.model_copy(update={"seed": seed})
    sweep = SWEEP.model_copy(
        update={"workloads": {workload: SWEEP.workloads[workload]}, "study": study_config}
    )
    space = Space(sweep.space)
    study = Study(
        open_storage(None, folder),
        workload,
        space,
        sweep.study,
        objectives=sweep.objectives,
        contract=terms(space, sweep.objectives),
    )
    study.enqueue([sweep.default, *sweep.first])
    trials = ServingTrials(workload=workload, study=study, sweep=sweep, regime=regime, scale=recording.scale)
    while begun := trials.next_task():
        trials.done(begun[0], recording.measure(begun[1]))
    return recording, trials


def test_the_grid_is_the_whole_space() -> None:
    points = set(Space(SWEEP.space).points())
    for workload in WORKLOADS:
        assert set(Recording(workload).groups) == points


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("workload", WORKLOADS)
def test_the_choice_of_a_search_is_within_the_interval_of_the_best_of_the_whole_grid(
    tmp_path: Path, regime: Callable[..., Regime], workload: str, seed: int
) -> None:
    recording, trials = search(tmp_path, workload, seed, regime())
    assert len(trials.study.views()) == SWEEP.study.trials < len(recording.groups)
    tasks = trials.confirm_tasks(5)
    found = trials.confirm(tasks, [recording.measure(task) for task in tasks])
    best = recording.ranking().best
    assert best
    assert tied(recording.outcome(found.chosen), best, "tokens_per_s", recording.scale, CONFIG)


def test_the_same_search_is_repeated_exactly(tmp_path: Path, regime: Callable[..., Regime]) -> None:
    first, again = (
        [view.point for view in search(tmp_path / name, "code", 1, regime())[1].study.views()]
        for name in ("a", "b")
    )
    assert first == again


def test_the_best_depth_for_code_is_a_loss_for_prose(tmp_path: Path, regime: Callable[..., Regime]) -> None:
    code, prose = Recording("code"), Recording("prose")
    best, best_for_prose = code.ranking().best, prose.ranking().best
    assert best
    assert best_for_prose
    assert best.point == Point(drafter="eagle3", values={"depth": 8})
    assert best_for_prose.point != best.point
    assert prose.outcome(best.point).loss
    assert not tied(prose.outcome(best.point), best_for_prose, "tokens_per_s", prose.scale, CONFIG)


def test_the_page_shows_that_code_and_prose_want_other_depths(
    tmp_path: Path, regime: Callable[..., Regime]
) -> None:
    results = {}
    for workload in ("code", "prose"):
        recording, trials = search(tmp_path, workload, 0, regime())
        tasks = trials.confirm_tasks(5)
        results[workload] = trials.result(trials.confirm(tasks, [recording.measure(each) for each in tasks]))
    code, prose = (results[workload].confirmation for workload in ("code", "prose"))
    assert code
    assert prose
    assert code.chosen.values.get("depth") != prose.chosen.values.get("depth")
    page = render_page(results, {"drafters": {}})
    for workload, found in (("code", code), ("prose", prose)):
        assert f"<li>{workload}: {found.chosen.name}, " in page

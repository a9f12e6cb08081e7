"""A whole serving study with a pretended machine: search, last measurement, files."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from eagleray.drafters.partial_block import PartialBlock
from eagleray.errors import DataError
from eagleray.evaluation.interleaved import GroupTimes
from eagleray.evaluation.regime import Regime
from eagleray.recipe.loading import load_recipe
from eagleray.serving.config import DraftConfig
from eagleray.serving.file import ServeFile
from eagleray.speculation.config import TreeSetting
from eagleray.tuning.config import Integer, Point, ServingSweep, SpaceConfig
from eagleray.tuning.outcome import Scale
from eagleray.tuning.report import best_recipe, headline, note, render_page, serve_file, write_serving_report
from eagleray.tuning.result import Result, best_points, read_result, warm_points
from eagleray.tuning.serving import Measured, MeasureTask, ServingTrials, draft_setting
from eagleray.tuning.space import Space
from eagleray.tuning.study import Study

MakeGroups = Callable[..., tuple[GroupTimes, ...]]
Trials = Callable[..., ServingTrials]
PIPELINE = {"drafters": {}, "target": {}, "engine": {}}
DRIFT = (1.0, 1.1, 0.9, 1.05)
"""How much faster than on average each prompt is."""


def speedup(point: Point) -> float:
    """Chains peak at depth 2; blocks lose."""
    known = {"plain": 1.0, "block": 0.8}
    chains = {1: 1.3, 2: 1.9, 3: 1.6}
    return chains[int(str(point.values["depth"]))] if point.drafter == "chain" else known[point.drafter]


@pytest.fixture
def trials(
    open_study: Callable[..., Study],
    sweep: Callable[..., ServingSweep],
    regime: Callable[..., Regime],
    scale: Scale,
) -> Trials:
    def make(**changes: object) -> ServingTrials:
        chosen = sweep(**changes)
        return ServingTrials(
            workload="code",
            study=open_study(objectives=chosen.objectives),
            sweep=chosen,
            regime=regime(),
            scale=scale,
        )

    return make


@pytest.fixture
def measure(groups: MakeGroups) -> Callable[[MeasureTask], Measured]:
    """A machine that is as fast as `speedup` says."""

    def run(task: MeasureTask) -> Measured:
        chosen = task.groups or range(4)
        apart = [groups([speedup(point) * DRIFT[group] for group in chosen]) for point in task.points]
        together = tuple(
            one.model_copy(
                update={
                    "prompts": (f"p{group}",),
                    "settings": tuple(each[index].settings[0] for each in apart),
                }
            )
            for index, (group, one) in enumerate(zip(chosen, apart[0], strict=True))
        )
        return Measured(groups=together, wall_s=1.0)

    return run


def search(trials: ServingTrials, measure: Callable[[MeasureTask], Measured]) -> Result:
    """Run the study to its end and the last measurement."""
    while begun := trials.next_task():
        trials.done(begun[0], measure(begun[1]))
    tasks = trials.confirm_tasks(4)
    return trials.result(trials.confirm(tasks, [measure(task) for task in tasks]))


@pytest.fixture
def result(trials: Trials, measure: Callable[[MeasureTask], Measured]) -> Result:
    return search(trials(), measure)


def test_the_fastest_point_is_chosen_by_the_last_measurement(
    result: Result, point: Callable[..., Point]
) -> None:
    found = result.confirmation
    assert found
    assert found.chosen == point("chain", depth=2)
    assert [o.point.name for o in found.outcomes] == ["chain depth=2", "chain depth=3", "chain depth=1"]
    assert found.over_default == "better"
    assert found.ratio == pytest.approx(1.9 / 1.3)
    assert len(found.outcomes[0].groups) == 4
    assert sum(group.plain.tokens for group in found.outcomes[0].groups) == 2 * 4 * 20, "two rounds"
    assert [note(result, o.point) for o in found.outcomes] == ["chosen", "runner-up", "default"]
    speedup = found.outcomes[0].figures["speedup"]
    assert headline(result) == (
        f"code: chain depth=2, 19.1 tokens/s, 1.91 times plain decoding "
        f"({speedup.low:.2f} to {speedup.high:.2f}); 1.46 times the default chain depth=1 (1.46 to 1.46)."
    )


def test_a_tie_with_the_default_is_said(
    trials: Trials, groups: MakeGroups, point: Callable[..., Point]
) -> None:
    study = trials()
    points = (point("chain", depth=2), point("chain", depth=1))
    task = MeasureTask(workload="code", points=points, groups=(0, 1, 2, 3))
    near = groups([1.5, 1.4, 1.6, 1.5]), groups([1.4, 1.5, 1.5, 1.55])
    measured = tuple(
        one.model_copy(update={"settings": (one.settings[0], other.settings[0])})
        for one, other in zip(*near, strict=True)
    )
    found = study.confirm([task], [Measured(groups=measured, wall_s=1.0)])
    assert found.over_default == "tie"
    assert found.low <= 1.0 <= found.high


def test_the_last_measurement_is_shared_out_so_that_every_worker_is_busy(
    trials: Trials, measure: Callable[[MeasureTask], Measured]
) -> None:
    study = trials(confirm_rounds=1)
    begun = study.next_task()
    assert begun
    study.done(begun[0], measure(begun[1]))
    assert [task.groups for task in study.confirm_tasks(5)] == [(0, 2, 4), (1, 3)]


def test_answers_that_differ_are_kept_shown_and_never_chosen(trials: Trials, groups: MakeGroups) -> None:
    study = trials()
    begun = study.next_task()
    assert begun
    wrong = groups([9.0] * 4, divergence="prompt p0, token 3")
    study.done(begun[0], Measured(groups=wrong, wall_s=1.0))
    (trial,) = study.result(None).trials
    assert trial.state == "infeasible"
    assert trial.reason == "answers differ from plain decoding: prompt p0, token 3"
    assert study.confirm_tasks(4) == []
    page = render_page({"code": study.result(None)}, {"drafters": {}})
    assert "answers differ from plain decoding: prompt p0, token 3" in page
    assert "nothing feasible was measured" in page


def test_losses_are_kept_and_shown(result: Result) -> None:
    losses = [trial.point.name for trial in result.trials if trial.outcome and trial.outcome.loss]
    assert losses == [trial.point.name for trial in result.trials if trial.point.drafter == "block"]
    assert render_page({"code": result}, {"drafters": {}}).count('class="loss"') == len(losses) == 4


def test_the_page_is_self_contained_and_shows_every_figure(result: Result) -> None:
    page = render_page({"code": result}, {"drafters": {}})
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")
    for text in ("best so far", "block on code", "chain.depth", result.regime_fingerprint, "chosen"):
        assert text in page
    assert "block 4, depth 3: 8.06" in page


def test_several_objectives_draw_their_front(
    trials: Trials, measure: Callable[[MeasureTask], Measured]
) -> None:
    found = search(trials(objectives=["tokens_per_s", "tau"]), measure)
    assert found.confirmation
    assert found.confirmation.chosen in found.front
    assert "Pareto front" in render_page({"code": found}, {"drafters": {}})


def test_a_result_survives_its_file_and_starts_another_sweep(tmp_path: Path, result: Result) -> None:
    write_serving_report(
        tmp_path / "run", tmp_path / "memory", {"code": result}, PIPELINE, {"chain": Path("c")}
    )
    again = read_result(tmp_path / "run" / "best_code.json")
    assert again == result
    assert read_result(tmp_path / "memory" / f"{result.regime_fingerprint}.json") == result
    assert [point.name for point in best_points(again, 3)] == [
        "chain depth=2",
        "chain depth=3",
        "chain depth=1",
    ]
    chains = SpaceConfig(plain=False, drafters={"chain": {"depth": Integer(low=2, high=9)}})
    taken = warm_points([tmp_path / "run" / "best_code.json"], Space(chains))
    assert [point.name for point in taken] == ["chain depth=2", "chain depth=3"], (
        "depth 1 is not in this space"
    )
    (tmp_path / "other.json").write_text(json.dumps({"a": 1}))
    with pytest.raises(DataError, match=r"jobs\.sweep"):
        read_result(tmp_path / "other.json")


def test_the_best_recipe_is_one_that_the_train_job_takes(
    tmp_path: Path, result: Result, point: Callable[..., Point]
) -> None:
    pipeline = load_recipe(Path("configs/demo.yaml"))
    assert result.confirmation
    chosen = result.confirmation.model_copy(update={"chosen": point("eagle3", depth=2)})
    outcomes = tuple(o.model_copy(update={"point": chosen.chosen}) for o in chosen.outcomes)
    named = result.model_copy(update={"confirmation": chosen.model_copy(update={"outcomes": outcomes})})
    text = best_recipe(named, pipeline.model_dump(mode="json"))
    assert text
    assert text.startswith("# code: eagle3 depth=2")
    (tmp_path / "best.yaml").write_text(text)
    best = load_recipe(tmp_path / "best.yaml")
    assert best.evaluation.depths == {"eagle3": (2,)}
    assert best.drafters == {"eagle3": pipeline.drafters["eagle3"]}
    assert yaml.safe_load(text)["kind"] == "pipeline"
    served = serve_file(
        named, pipeline.model_dump(mode="json"), {"eagle3": Path("runs/demo/drafters/eagle3")}
    )
    assert served
    (application,) = ServeFile.model_validate(yaml.safe_load(served)).applications
    assert application.args.draft == DraftConfig(folder=Path("runs/demo/drafters/eagle3"), depth=2)
    assert application.args.target == pipeline.target
    assert best_recipe(result, pipeline.model_dump(mode="json")) is None, "chain is no drafter of it"


@pytest.mark.parametrize(
    ("drafter", "values", "draft"),
    [
        ("plain", {}, None),
        ("prompt_lookup", {"depth": 4}, {"drafter": {"name": "prompt_lookup"}, "depth": 4}),
        ("dflash", {"block_size": 8, "depth": 3}, {"folder": "d", "block_size": 8, "depth": 3}),
        (
            "dflash",
            {"depth": 3, "tree_nodes": 16, "tree_top_k": 4},
            {"folder": "d", "depth": 3, "tree": {"nodes": 16, "top_k": 4}},
        ),
        ("dflash", {"depth": 7, "adaptive": True}, {"folder": "d", "depth": 7, "adaptive": True}),
    ],
)
def test_whatever_is_chosen_can_be_served(
    result: Result, drafter: str, values: dict[str, Any], draft: dict[str, object] | None
) -> None:
    pipeline = load_recipe(Path("configs/demo.yaml")).model_dump(mode="json")
    chosen = Point(drafter=drafter, values=values)
    assert result.confirmation
    outcomes = tuple(o.model_copy(update={"point": chosen}) for o in result.confirmation.outcomes)
    confirmation = result.confirmation.model_copy(update={"chosen": chosen, "outcomes": outcomes})
    text = serve_file(
        result.model_copy(update={"confirmation": confirmation}), pipeline, {"dflash": Path("d")}
    )
    assert text
    (application,) = ServeFile.model_validate(yaml.safe_load(text)).applications
    assert application.args.draft == (DraftConfig.model_validate(draft) if draft else None)
    assert application.name == "code"


def test_a_point_becomes_what_an_engine_takes() -> None:
    sources: dict[str, Any] = {"d": SimpleNamespace(tapped_layers=(1,), max_depth=7)}

    def setting(**values: int) -> Any:
        return draft_setting(Point(drafter="d", values=values), sources)

    assert draft_setting(Point(drafter="plain"), sources) is None
    chain = setting(depth=5)
    assert (chain.source, chain.depth, chain.tree, chain.adaptive) == (sources["d"], 5, None, False)
    assert setting(depth=5, adaptive=True).adaptive
    assert setting(depth=5, tree_nodes=12).tree == TreeSetting(nodes=12)
    block = setting(depth=3, block_size=8)
    assert isinstance(block.source, PartialBlock)
    assert (block.source.max_depth, block.depth) == (7, 3)


def test_only_serving_parameters_may_be_searched(sweep: Callable[..., ServingSweep]) -> None:
    space = {"drafters": {"d": {"width": {"kind": "integer", "low": 1, "high": 2}}}}
    with pytest.raises(ValidationError, match=r"d\.width is no serving parameter"):
        sweep(space=space)
    with pytest.raises(ValidationError, match="d needs an integer parameter depth"):
        sweep(space={"drafters": {"d": {"tree_nodes": {"kind": "integer", "low": 1, "high": 2}}}})

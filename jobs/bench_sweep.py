"""Bench: what a sweep finds against the whole grid, what pruning saves, and what searching itself costs.

`python -m jobs.bench_sweep`, on the drafters of `make demo`. Parts that were measured are kept beside the
bench file and continued, as sweeps are.
"""

import contextlib
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from eagleray.files import write_json_atomically
from eagleray.recipe.loading import load_sweep
from jobs import console
from jobs.bench import BENCH_FOLDER, Figure, exact, write_bench

if TYPE_CHECKING:
    from eagleray.cluster.sweep import SweepRun
    from eagleray.tuning.result import Result

FOLDER = BENCH_FOLDER / "sweep"
SERVING, TRAINING = Path("configs/sweep.yaml"), Path("configs/sweep_training.yaml")
EFFICIENCY_POINTS = 4
EFFICIENCY_ROUNDS = 3
OVERHEAD_TRIALS = 60

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    pipeline_root: Annotated[
        str, typer.Option(help="run.root of the pipeline's run, where its drafters are.")
    ] = "runs",
    part: Annotated[
        list[str] | None,
        typer.Option(help="Only these parts: overhead, serving, efficiency, training.", show_default=False),
    ] = None,
) -> None:
    """Measure all parts and write runs/bench/sweep.json from those that are there."""
    console.run_bare(lambda out: _bench(pipeline_root, part, out))


def _bench(pipeline_root: str, chosen: Sequence[str] | None, out: Console) -> None:
    from eagleray.cluster.session import ray_session

    common = [f"overrides=[run.root={pipeline_root}]", f"run.root={FOLDER}"]
    parts = {"overhead": _overhead, "serving": _serving, "efficiency": _efficiency, "training": _training}
    wanted = [name for name in parts if not chosen or name in chosen]
    # What the driver costs is measured without a cluster beside it.
    with contextlib.nullcontext() if wanted == ["overhead"] else ray_session(2):
        for name in wanted:
            found = parts[name](common, out)
            content = {key: figure.model_dump() for key, figure in found.items()}
            write_json_atomically(FOLDER / "parts" / f"{name}.json", content)
            for key, figure in found.items():
                out.print(f"{key} {figure.value:.3g} ({figure.low:.3g} to {figure.high:.3g}) {figure.unit}")
    figures = _kept_figures()
    recipe, _ = load_sweep(SERVING, common)
    regime = {"serving": recipe.serving, "training": load_sweep(TRAINING, common)[0].training}
    plain = {name: section.model_dump(mode="json") for name, section in regime.items() if section}
    out.print(f"figures {write_bench('sweep', figures, plain)}")


def _kept_figures() -> dict[str, Figure]:
    import json

    found: dict[str, Figure] = {}
    for path in sorted((FOLDER / "parts").glob("*.json")):
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        found |= {key: Figure.model_validate(value) for key, value in content.items()}
    return found


def _overhead(common: Sequence[str], out: Console) -> dict[str, Figure]:
    """Seconds of the driver for a trial that costs nothing: ask, tell, and both in the journal."""
    from eagleray.tuning.space import Space
    from eagleray.tuning.storage import open_storage
    from eagleray.tuning.study import Study, terms
    from jobs.bench import ratio_figure

    recipe, _ = load_sweep(SERVING, common)
    assert recipe.serving is not None
    space, folder = Space(recipe.serving.space), FOLDER / "overhead"
    shutil.rmtree(folder, ignore_errors=True)
    rows = []
    for round_ in range(OVERHEAD_TRIALS // recipe.serving.study.trials + 1):
        name = f"round{round_}"
        storage = open_storage(None, folder / name)
        study = Study(
            storage, name, space, recipe.serving.study, objectives=["v"], contract=terms(space, ["v"])
        )
        before_s = time.perf_counter()
        while proposal := study.propose():
            study.finish(proposal, [float(proposal.number)], {})
            rows.append([time.perf_counter() - before_s, 1.0])
            before_s = time.perf_counter()
    return {"overhead_per_trial_s": ratio_figure(rows, "s")}


def _serving(common: Sequence[str], out: Console) -> dict[str, Figure]:
    """The chosen point of a search, as the whole grid measured it, over the best of that grid."""
    from eagleray.tuning.outcome import ratio

    grid = _sweep(common, "grid", ["serving.study.sampler=exhaustive", "serving.study.trials=1000"], out)
    search = _sweep(common, "search", [], out)
    write_json_atomically(FOLDER / "grid.json", {name: compact(result) for name, result in grid.items()})
    recipe, _ = load_sweep(SERVING, common)
    assert recipe.serving is not None
    figures = {}
    for workload, result in grid.items():
        objective, config = result.objectives[0], recipe.serving.study.bootstrap
        feasible = [outcome for outcome in result.outcomes if outcome.feasible]
        best = max(feasible, key=lambda outcome: outcome.figures[objective].value)
        found = search[workload].confirmation
        assert found is not None
        chosen = next(outcome for outcome in feasible if outcome.point == found.chosen)
        out.print(f"{workload}: the search chose {chosen.point.name}, the grid {best.point.name}")
        interval = ratio(chosen, best, objective, result.scale, config)
        figures[f"{workload}.chosen_vs_exhaustive_best_ratio"] = Figure(
            value=interval.value, unit="ratio", low=interval.low, high=interval.high, n=len(best.groups)
        )
        figures[f"{workload}.trials_over_grid_ratio"] = exact(
            len(search[workload].trials) / len(result.trials), "ratio", len(result.trials)
        )
    worst = min(figures, key=lambda key: figures[key].value if key.endswith("best_ratio") else float("inf"))
    return {**figures, "chosen_vs_exhaustive_best_ratio": figures[worst]}


def _sweep(common: Sequence[str], name: str, changes: Sequence[str], out: Console) -> Mapping[str, "Result"]:
    from eagleray.cluster.sweep import open_serving_sweep, run_serving_sweep
    from eagleray.tuning.report import write_serving_report
    from jobs.sweep_view import sweep_listener

    settings = [*common, f"run.name={name}", "serving.study.time_limit_s=null", *changes]
    recipe, pipeline = load_sweep(SERVING, settings)
    run = open_serving_sweep(recipe, pipeline)
    start_s = time.monotonic()
    with sweep_listener(out) as listener:
        results = run_serving_sweep(run, listener)
    out.print(f"sweep {name}: {time.monotonic() - start_s:.0f} s")
    plain = pipeline.model_dump(mode="json")
    write_serving_report(run.folder, run.memory, results, plain, run.work.drafters)
    return results


def compact(result: "Result") -> dict[str, Any]:
    """The measured groups of every point as plain rows: what a replay of the study needs."""
    return {
        "plain_tokens_per_s": result.scale.plain_tokens_per_s,
        "points": [
            {
                "point": outcome.point.model_dump(mode="json"),
                "divergence": outcome.divergence,
                "rows": [
                    [
                        round(group.plain.decode_s, 4),
                        group.plain.tokens,
                        round(group.settings[0].decode_s, 4),
                        group.settings[0].tokens,
                        group.settings[0].cycles,
                    ]
                    for group in outcome.groups
                ],
            }
            for outcome in result.outcomes
        ],
    }


def _efficiency(common: Sequence[str], out: Console) -> dict[str, Figure]:
    """The same trials by one process and by two, in turn: seconds of one over twice those of two."""
    from eagleray.cluster.sweep import open_serving_sweep
    from jobs.bench import ratio_figure

    recipe, pipeline = load_sweep(SERVING, [*common, "run.name=efficiency", "serving.measure.prompts=3"])
    run = open_serving_sweep(recipe, pipeline)
    rows = [[_timed_s(run, workers=1), 2 * _timed_s(run, workers=2)] for _ in range(EFFICIENCY_ROUNDS)]
    return {"parallel_efficiency_ratio": ratio_figure(rows, "ratio")}


def _timed_s(run: "SweepRun", workers: int) -> float:
    """Seconds of a few tasks, with the processes warm."""
    from eagleray.cluster.crew import Crew
    from eagleray.cluster.sweep import ServingActor
    from eagleray.tuning.serving import MeasureTask
    from eagleray.tuning.space import Space

    workload = next(iter(run.workloads))
    points = [point for point in Space(run.sweep.space).points() if point.values.get("depth") == 3]
    tasks = [MeasureTask(workload=workload, points=(point,)) for point in points[:EFFICIENCY_POINTS]]
    crew = Crew(ServingActor, (run.work, run.workloads), workers, {"num_cpus": 1, "max_restarts": 0})
    crew.all([MeasureTask(workload=workload, points=(), groups=(0,))] * workers)
    start_s = time.perf_counter()
    crew.all(tasks)
    spent_s = time.perf_counter() - start_s
    crew.dismiss()
    return spent_s


def _training(common: Sequence[str], out: Console) -> dict[str, Figure]:
    """CPU seconds of a pruned study over those of the whole grid, and whether both have one winner."""
    from eagleray.cluster.sweep_training import open_training_sweep, run_training_sweep
    from eagleray.tuning.report import trained_cpu_s, write_training_report
    from jobs.sweep_view import sweep_listener

    found: dict[str, Result] = {}
    for name, pruner in (("pruned", "successive_halving"), ("whole", "none")):
        settings = [*common, f"run.name={name}", f"training.study.pruner={pruner}"]
        recipe, pipeline = load_sweep(TRAINING, settings)
        run = open_training_sweep(recipe, pipeline)
        with sweep_listener(out) as listener:
            found[name] = run_training_sweep(run, listener)
        write_training_report(run.folder, found[name], pipeline.model_dump(mode="json"), run.sweep.cpu_s)
    best = {name: _best_name(result) for name, result in found.items()}
    out.print(f"pruned chose {best['pruned']}, the whole grid {best['whole']}")
    trials = len(found["whole"].trials)
    return {
        "pruned_compute_ratio": exact(
            trained_cpu_s(found["pruned"]) / trained_cpu_s(found["whole"]), "ratio", trials
        ),
        "pruned_same_winner": exact(float(best["pruned"] == best["whole"]), "ratio", trials),
    }


def _best_name(result: "Result") -> str:
    """The point with the highest value among the trials."""
    objective = result.objectives[0]
    return max(result.outcomes, key=lambda outcome: outcome.figures[objective].value).point.name


if __name__ == "__main__":
    app()

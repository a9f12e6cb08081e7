"""Sweep: search the setting that is fastest in the named regime, and say what it is worth.

`python -m jobs.sweep --recipe configs/sweep.yaml` on the drafters of `make demo`. The same command
continues a sweep that was stopped.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from eagleray.recipe.loading import load_sweep
from jobs import console
from jobs.options import OverridesArgument, RecipeOption

if TYPE_CHECKING:
    from eagleray.tuning.result import Result

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(recipe: RecipeOption = Path("configs/sweep.yaml"), overrides: OverridesArgument = None) -> None:
    """Run the studies of a sweep recipe; write results, a page, and the best recipes."""
    console.run_bare(lambda out: _sweep(recipe, overrides or (), out))


def _sweep(path: Path, overrides: Sequence[str], out: Console) -> None:
    recipe, pipeline = load_sweep(path, overrides)
    out.print(f"recipe {path} is valid; opening the sweep {recipe.run.name}")
    # Imported late: a wrong recipe must cost a second, not the import of torch and Ray.
    from eagleray.cluster.session import ray_session
    from eagleray.cluster.sweep import open_serving_sweep, run_serving_sweep
    from eagleray.cluster.sweep_training import open_training_sweep, run_training_sweep
    from eagleray.tuning.report import headline, write_serving_report, write_training_report
    from jobs.sweep_view import confirmed, sweep_listener

    plain = pipeline.model_dump(mode="json")
    training = open_training_sweep(recipe, pipeline) if recipe.training else None
    serving = open_serving_sweep(recipe, pipeline) if recipe.serving else None
    workers = max(run.sweep.study.workers for run in (training, serving) if run)
    results: dict[str, Result] = {}
    with ray_session(workers):
        if training:
            with sweep_listener(out) as listener:
                found = run_training_sweep(training, listener)
            page = write_training_report(training.folder, found, plain, training.sweep.cpu_s)
            out.print(f"page {page}")
            results["training"] = found
        if serving:
            with sweep_listener(out) as listener:
                by_workload = run_serving_sweep(serving, listener)
            page = write_serving_report(
                serving.folder, serving.memory, by_workload, plain, serving.work.drafters
            )
            out.print(f"page {page}")
            results |= by_workload
    out.print(confirmed(results))
    for result in results.values():
        out.print(headline(result), markup=False)


if __name__ == "__main__":
    app()

"""What all recipe jobs do: read, check on paper, connect, run the stages, say where the result is."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from eagleray.errors import ConfigError
from eagleray.monitoring.progress import ProgressListener
from eagleray.recipe.loading import load_recipe
from eagleray.recipe.stages import read_stage
from jobs import console
from jobs.summary import print_repair, print_summary


def run_recipe(
    path: Path,
    overrides: Sequence[str] | None,
    redo: Sequence[str] | None,
    only: tuple[str, ...] = (),
    *,
    repair: bool = False,
    golden: Path | None = None,
    write_golden: Path | None = None,
) -> None:
    """Run the stages of a recipe whose names begin with one of `only`; all of them when it is empty.

    Args:
        repair: First check what was distilled, and move what is damaged aside.
        golden: A file that the target's answers are held against.
        write_golden: A file that they are written into.
    """
    golden_paths = (golden, write_golden)
    console.run(
        lambda listener, out: _run(
            path, overrides or (), redo or (), only, repair, golden_paths, listener, out
        )
    )


def _run(
    path: Path,
    overrides: Sequence[str],
    redo: Sequence[str],
    only: tuple[str, ...],
    repair: bool,
    golden_paths: tuple[Path | None, Path | None],
    listener: ProgressListener,
    out: Console,
) -> None:
    recipe = load_recipe(path, overrides)
    out.print(f"recipe {path} is valid; preparing the target {recipe.target.model}")
    # Imported late: a wrong recipe must cost a second, not the import of torch and Ray.
    from eagleray.cluster.context import open_run
    from eagleray.cluster.pipeline import min_cpus, plan_stages, repair_run, run_stages
    from eagleray.cluster.session import ray_session
    from eagleray.cluster.stage import discard_stages
    from eagleray.evaluation.golden import golden_files

    run = open_run(recipe, listener)
    stages = plan_stages(run)
    discard_stages(stages, redo, run.folder.stages)
    chosen = [stage for stage in stages if not only or stage.name.startswith(only)]
    if not chosen:
        raise ConfigError(
            f"No stage matches {', '.join(only)}; "
            f"this recipe has {', '.join(stage.name for stage in stages)}."
        )
    out.print(f"run folder {run.folder.path}")
    for note in run.notes:
        out.print(note, markup=False)
    if repair:
        print_repair(repair_run(run), out)
    with ray_session(min_cpus(recipe)):
        run_stages(run, chosen, golden_files(*golden_paths))
    for stage in chosen:
        if curve := read_stage(run.folder.stages, stage.name).facts.get("learning_curve"):
            out.print(f"{stage.name}: {curve}", markup=False)
    print_summary(run.folder, out)

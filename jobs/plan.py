"""Resolve a recipe on paper: tokens, steps, placement and memory, in a second and without a cluster."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from eagleray.errors import ConfigError
from eagleray.monitoring.progress import ProgressListener
from eagleray.recipe.loading import load_recipe
from eagleray.recipe.plan import RecipePlan, plan_recipe
from eagleray.recipe.sections import PipelineRecipe
from eagleray.settings import read_yaml
from eagleray.targets.geometry import TargetGeometry
from eagleray.training.memory import gib
from jobs import console
from jobs.options import OverridesArgument

SHAPES = Path("configs/cluster/shapes")
"""`config.json` of targets that are not at hand, cut to their shape; a slash in a name is written --."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    recipe: Annotated[Path, typer.Argument(help="YAML recipe, e.g. configs/cluster/qwen3_8b.yaml.")],
    overrides: OverridesArgument = None,
    prompts: Annotated[
        int | None, typer.Option(help="Training prompts, where the recipe's sources do not say.")
    ] = None,
) -> None:
    """Show what a run of the recipe will be; fail on what cannot work."""

    def job(_: ProgressListener, out: Console) -> None:
        checked = load_recipe(recipe, overrides or ())
        show(checked, plan_recipe(checked, find_shape(checked.target.model), prompts), out)

    console.run(job)


def find_shape(model: str, shapes: Path = SHAPES) -> TargetGeometry:
    """Shape of a target: from its folder, or from the shapes that ship.

    Raises:
        ConfigError: Neither is there.
    """
    if (Path(model) / "config.json").is_file():
        return TargetGeometry.read(Path(model))
    path = shapes / f"{model.replace('/', '--')}.json"
    if not path.is_file():
        raise ConfigError(
            f"The shape of target {model} is not known here. Set target.model to its folder, or put its "
            f"config.json at {path}."
        )
    return TargetGeometry.from_config(read_yaml(path), ())


def show(recipe: PipelineRecipe, plan: RecipePlan, out: Console) -> None:
    """Print a plan."""
    out.print(f"target {recipe.target.model}, {plan.target_parameters / 1e9:.2f} billion parameters")
    out.print(f"distil {number(plan.prompts)} prompts, at most {number(plan.answer_tokens)} answer tokens")
    features = "unknown" if plan.feature_bytes is None else gib(plan.feature_bytes)
    out.print(f"stored features at most {features}")
    if machines := recipe.machines:
        out.print(
            f"machines {machines.nodes} x ({machines.gpus_per_node} GPUs, {machines.cpus_per_node} cores)"
        )
    table = Table("drafter", "parameters", "workers", "backend", "features", "accumulated", "steps", "tokens")
    for each in plan.trainings:
        training = recipe.drafters[each.label].training
        table.add_row(
            each.label,
            f"{each.num_parameters / 1e6:.1f} M",
            str(each.workers),
            training.backend,
            training.features,
            str(each.accumulation),
            number(each.steps),
            number(each.supervised_tokens),
        )
    out.print(table)
    names = list(vars(plan.trainings[0].memory))
    memory = Table("memory of a rank", *names, "total")
    for each in plan.trainings:
        parts = [gib(value) for value in vars(each.memory).values()]
        memory.add_row(each.label, *parts, gib(each.memory.total))
    out.print(memory)
    for each in plan.trainings:
        if stream := each.stream:
            out.print(
                f"{each.label} is fed by {stream.processes} target processes of {stream.gpus_each} GPUs, "
                f"{gib(stream.gpu_bytes)} on each"
            )


def number(value: int | None) -> str:
    """A count, or that it is not known yet."""
    return "unknown" if value is None else f"{value:,}"


if __name__ == "__main__":
    app()

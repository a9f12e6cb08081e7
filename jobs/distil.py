"""Distil: the target answers the training prompts; shards and a manifest are what remains."""

from typing import Annotated

import typer

from jobs.options import OverridesArgument, RecipeOption, RedoOption
from jobs.runner import run_recipe

RepairOption = Annotated[
    bool,
    typer.Option(
        "--repair",
        help="Check every shard and stored feature first, move what is damaged to a quarantine folder, "
        "and make only that again.",
    ),
]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    recipe: RecipeOption,
    overrides: OverridesArgument = None,
    redo: RedoOption = None,
    repair: RepairOption = False,
) -> None:
    """Make the dataset of a recipe, or what is missing of it."""
    run_recipe(recipe, overrides, redo, ("distil",), repair=repair)


if __name__ == "__main__":
    app()

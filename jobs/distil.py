"""Distil: the target answers the training prompts; shards and a manifest are what remains."""

import typer

from jobs.options import OverridesArgument, RecipeOption, RedoOption
from jobs.runner import run_recipe

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(recipe: RecipeOption, overrides: OverridesArgument = None, redo: RedoOption = None) -> None:
    """Make the dataset of a recipe, or what is missing of it."""
    run_recipe(recipe, overrides, redo, ("distil",))


if __name__ == "__main__":
    app()

"""Evaluate: acceptance and speed of the trained drafters on the held-out prompts, and the report."""

import typer

from jobs.options import OverridesArgument, RecipeOption, RedoOption
from jobs.runner import run_recipe

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(recipe: RecipeOption, overrides: OverridesArgument = None, redo: RedoOption = None) -> None:
    """Measure every drafter of a recipe against plain decoding and write report.json and report.html."""
    run_recipe(recipe, overrides, redo, ("evaluate",))


if __name__ == "__main__":
    app()

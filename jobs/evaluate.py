"""Evaluate: acceptance and speed of the trained drafters on the held-out prompts, and the report."""

import typer

from jobs.options import GoldenOption, OverridesArgument, RecipeOption, RedoOption, WriteGoldenOption
from jobs.runner import run_recipe

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    recipe: RecipeOption,
    overrides: OverridesArgument = None,
    redo: RedoOption = None,
    golden: GoldenOption = None,
    write_golden: WriteGoldenOption = None,
) -> None:
    """Measure every drafter of a recipe against plain decoding and write report.html, .json and .md."""
    run_recipe(recipe, overrides, redo, ("evaluate",), golden=golden, write_golden=write_golden)


if __name__ == "__main__":
    app()

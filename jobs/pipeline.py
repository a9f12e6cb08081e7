"""The main job: from prompts to judged drafters, in one command.

On a laptop: `python -m jobs.pipeline --recipe configs/demo.yaml`. On a cluster:
`ray job submit --working-dir . -- python -m jobs.pipeline --recipe configs/demo.yaml`.
"""

import typer

from jobs.options import OverridesArgument, RecipeOption, RedoOption
from jobs.runner import run_recipe

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(recipe: RecipeOption, overrides: OverridesArgument = None, redo: RedoOption = None) -> None:
    """Distil, train and export every drafter, evaluate them, and write the report.

    Continues an interrupted run of the same recipe. Uses the Ray cluster that RAY_ADDRESS names,
    else a local one.
    """
    run_recipe(recipe, overrides, redo)


if __name__ == "__main__":
    app()

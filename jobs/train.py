"""Train: preflight, Ray Train, and the exported drafter folder, for each drafter of a recipe."""

from typing import Annotated

import typer

from jobs.options import OverridesArgument, RecipeOption, RedoOption
from jobs.runner import run_recipe

DraftersOption = Annotated[
    list[str] | None,
    typer.Option(
        "--drafter",
        metavar="LABEL",
        help="Train only the drafter with this label. May be given several times. Default: all.",
        show_default=False,
    ),
]


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    recipe: RecipeOption,
    overrides: OverridesArgument = None,
    drafter: DraftersOption = None,
    redo: RedoOption = None,
) -> None:
    """Train and export the drafters of a recipe on its finished dataset, continuing from checkpoints."""
    run_recipe(
        recipe, overrides, redo, tuple(f"train_{label}" for label in drafter) if drafter else ("train_",)
    )


if __name__ == "__main__":
    app()

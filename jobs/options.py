"""Command-line options that every job has."""

from pathlib import Path
from typing import Annotated

import typer

RecipeOption = Annotated[
    Path, typer.Option("--recipe", "-r", help="YAML recipe, e.g. configs/demo.yaml.", show_default=False)
]
OverridesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY.PATH=VALUE]...",
        help="Overrides of recipe values, e.g. distil.workers=4 run.name=mine. Values are YAML.",
        show_default=False,
    ),
]
RedoOption = Annotated[
    list[str] | None,
    typer.Option(
        "--redo",
        metavar="STAGE",
        help="Discard what this stage made earlier and make it anew. May be given several times.",
        show_default=False,
    ),
]
GoldenOption = Annotated[
    Path | None,
    typer.Option(
        "--golden", help="Hold the target's greedy answers against this file; fail where one differs."
    ),
]
WriteGoldenOption = Annotated[
    Path | None, typer.Option("--write-golden", help="Write the target's greedy answers into this file.")
]

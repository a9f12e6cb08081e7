"""Export: a drafter as a folder that vLLM and SGLang load, from ours or from somebody else's.

`python -m jobs.export runs/demo/drafters/eagle3 --to served/eagle3` copies one of our folders after a
strict check; a public checkpoint is translated first. Needs no cluster.
"""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from eagleray.errors import ConfigError
from eagleray.targets.config import EMBEDDED, TargetConfig
from jobs import console

SourceArgument = Annotated[
    Path,
    typer.Argument(
        metavar="FOLDER",
        help="A drafter folder: exported here, or a public checkpoint (SpecForge, EAGLE, speculators, z-lab "
        "DFlash, Medusa).",
        show_default=False,
    ),
]
ToOption = Annotated[Path, typer.Option("--to", help="Folder to write; must not exist.", show_default=False)]
TargetOption = Annotated[
    str, typer.Option(help="The target: `embedded`, a Hugging Face folder, or a hub name.")
]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(folder: SourceArgument, to: ToOption, target: TargetOption = EMBEDDED) -> None:
    """Check a drafter against its target and write it as a folder that engines load."""
    console.run(lambda _, out: _export(folder, to, target, out))


def _export(folder: Path, to: Path, target: str, out: Console) -> None:
    # Imported late: `--help` must cost no import of torch.
    import torch

    from eagleray.drafters.folder import PROFILE, export_drafter, load_drafter, read_profile
    from eagleray.drafters.imports.catalog import import_drafter
    from eagleray.targets.heads import load_heads
    from eagleray.targets.loading import resolve_target

    if to.exists():
        raise ConfigError(f"{to} exists already. Give another folder with --to, or delete it.")
    heads = load_heads(resolve_target(TargetConfig(model=target)), torch.float32)
    if (folder / PROFILE).exists():
        drafter, known = load_drafter(folder, heads), read_profile(folder)
    else:
        drafter, naming = import_drafter(folder, heads)
        known = {"imported_from": naming}
    own: dict[str, Any] = drafter.export_profile()
    export_drafter(drafter, to, {name: value for name, value in known.items() if name not in own})
    load_drafter(to, heads)
    out.print(
        f"{to}: {own['algorithm']}, {drafter.num_parameters():,} parameters, target layers "
        f"{list(drafter.tapped_layers)}, slots: {own['slots']}",
        markup=False,
    )


if __name__ == "__main__":
    app()

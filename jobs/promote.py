"""Promote: sign a drafter off for production if its report says it wins there, or say why not."""

import getpass
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from eagleray.errors import DataError
from eagleray.evaluation.promotion import objections, promote
from eagleray.files import write_json_atomically
from jobs import console
from jobs.compare import read_report

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    report: Annotated[Path, typer.Argument(help="A report.json, or the folder that holds it.")],
    drafter: Annotated[str, typer.Option(help="Label of the drafter.")],
    production: Annotated[
        Path,
        typer.Option(help="The production regime: a report made in it, or its `regime` section as JSON."),
    ],
    family: Annotated[
        list[str] | None, typer.Option(help="A family it must win on; all of the report if left out.")
    ] = None,
    signed_off_by: Annotated[str | None, typer.Option(help="Who answers for it; you, if left out.")] = None,
) -> None:
    """Write promotion.json beside the report, or say what speaks against it."""
    console.run(
        lambda _, out: _promote(
            report, drafter, production, family or [], signed_off_by or getpass.getuser(), out
        )
    )


def _promote(
    path: Path, label: str, production: Path, families: list[str], signed_off_by: str, out: Console
) -> None:
    report = read_report(path)
    regime = (
        json.loads(production.read_text(encoding="utf-8"))
        if production.is_file()
        else read_report(production)
    )
    reasons = objections(report, label, regime.get("regime", regime), families)
    if reasons:
        raise DataError(f"{label} is not promoted: {'; '.join(reasons)}.")
    folder = path if path.is_dir() else path.parent
    promotion = promote(report, label, signed_off_by, families)
    write_json_atomically(folder / "promotion.json", promotion.model_dump(mode="json"))
    out.print(f"promoted {folder / 'promotion.json'}", markup=False)


if __name__ == "__main__":
    app()

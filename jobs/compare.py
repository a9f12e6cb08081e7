"""Compare: two reports of one regime side by side; across regimes only when asked, and then labelled."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from eagleray.errors import DataError
from eagleray.evaluation.bootstrap import Interval
from eagleray.evaluation.comparison import CROSS_REGIME, Comparison, compare_reports
from jobs import console

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    first: Annotated[Path, typer.Argument(help="A report.json, or the folder that holds it.")],
    second: Annotated[Path, typer.Argument(help="The other one.")],
    cross_regime: Annotated[
        bool, typer.Option("--cross-regime", help="Compare although the regimes differ; labels the result.")
    ] = False,
) -> None:
    """Put two reports side by side."""
    console.run(
        lambda _, out: _print(
            compare_reports(read_report(first), read_report(second), cross_regime=cross_regime), out
        )
    )


def read_report(path: Path) -> dict[str, Any]:
    """Read a report.

    Raises:
        DataError: There is none.
    """
    file = path / "report.json" if path.is_dir() else path
    try:
        report: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(
            f"{file} is not a report that can be read: {error}. Give a report.json or its folder; "
            "`python -m jobs.evaluate` writes one."
        ) from None
    if missing := {"regime", "drafters", "judged_by", "exactness"} - report.keys():
        raise DataError(
            f"{file} is no report of this version: it lacks {', '.join(sorted(missing))}. Make it anew with "
            "`python -m jobs.evaluate`."
        )
    return report


def _print(comparison: Comparison, out: Console) -> None:
    if comparison.differing:
        out.print(f"{CROSS_REGIME}.", style="bold")
        for field in comparison.differing:
            out.print(f"  {field}", markup=False)
    table = Table("drafter", "family", "figure", "first", "second", "second is", "verdicts")
    for row in comparison.rows:
        verdicts = " and ".join(dict.fromkeys(row.verdicts))
        table.add_row(
            row.label, row.family, row.figure, _text(row.first), _text(row.second), row.outcome, verdicts
        )
    out.print(table)


def _text(interval: Interval) -> str:
    return f"{interval.value:.2f} ({interval.low:.2f} to {interval.high:.2f})"


if __name__ == "__main__":
    app()

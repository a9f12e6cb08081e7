"""Recommend: what past sweeps say of a regime, and how sure that is.

`python -m jobs.recommend --regime workload=code --regime machine.cores=2`. Without `--regime` it lists
the regimes that were measured.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from eagleray.settings import apply_overrides
from jobs import console

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    regime: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=VALUE",
            help="A field of the regime, e.g. engine_settings.tensor_parallel=4. May be given several times.",
            show_default=False,
        ),
    ] = None,
    memory: Annotated[Path, typer.Option(help="Folder of results that sweeps left.")] = Path("runs/memory"),
    cross_regime: Annotated[
        bool, typer.Option("--cross-regime", help="Show the nearest result of another regime, labelled so.")
    ] = False,
) -> None:
    """Say what was measured in a regime and what is only predicted; refuse what is neither."""
    console.run_bare(lambda out: _recommend(regime or (), memory, cross_regime, out))


def _recommend(fields: Sequence[str], memory: Path, cross_regime: bool, out: Console) -> None:
    from eagleray.tuning.recommend import advise, read_memory, require_measured
    from eagleray.tuning.report import headline

    results = read_memory(memory)
    if not fields:
        table = Table(title=f"Regimes that were measured ({memory})")
        for heading in ("regime", "study", "workload", "measured", "chosen"):
            table.add_column(heading)
        for result in results:
            chosen = result.confirmation.chosen.name if result.confirmation else "nothing feasible"
            table.add_row(
                result.regime_fingerprint, result.study, result.workload, result.generated_at, chosen
            )
        out.print(table)
        return
    advice = advise(results, _flatten(apply_overrides({}, fields)))
    if not cross_regime:
        require_measured(advice)
    label = "measured" if advice.measured else "CROSS-REGIME, not measured here"
    out.print(f"{label}: {headline(advice.result)}", markup=False)
    if advice.result.ties:
        out.print(f"inside the noise of the best trial: {', '.join(p.name for p in advice.result.ties)}")
    for difference in advice.differing:
        out.print(f"differs: {difference}", markup=False)
    for prediction in advice.predictions:
        low, high = prediction.between
        out.print(
            f"predicted, not measured: {prediction.point.name}, {prediction.speedup:.2f} times plain "
            f"decoding (from depths {low} and {high})",
            markup=False,
        )
    out.print(
        f"regime {advice.result.regime_fingerprint} of study {advice.result.study}; taken as measured: "
    )
    out.print(", ".join(advice.open_fields), markup=False)


def _flatten(content: Mapping[str, Any], place: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in content.items():
        flat |= _flatten(value, f"{place}{key}.") if isinstance(value, dict) else {f"{place}{key}": value}
    return flat


if __name__ == "__main__":
    app()

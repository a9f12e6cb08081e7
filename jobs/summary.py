"""The short table at the end of a job."""

import json
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from eagleray.recipe.run_folder import RunFolder

if TYPE_CHECKING:
    from eagleray.cluster.repair import RepairReport

MAX_PROBLEMS = 10
"""Damaged files that a repair prints one by one."""


def print_summary(folder: RunFolder, out: Console) -> None:
    """Print one line per drafter and family, and where the report lies."""
    if not folder.report_json.exists():
        out.print(f"done; see {folder.path}")
        return
    report = json.loads(folder.report_json.read_text(encoding="utf-8"))
    table = Table(title="Held-out prompts, greedy, against plain decoding by the same engine")
    for heading in ("drafter", "family", "tau", "depth", "speedup", "95 %", "exact", "verdict"):
        table.add_column(heading, justify="left" if heading in ("drafter", "family") else "right")
    for label, drafter in report["drafters"].items():
        for family, entry in drafter["families"].items():
            table.add_row(
                label,
                family,
                f"{entry['acceptance_length']:.2f}",
                str(entry["best_depth"]),
                _ratio(entry["speedup_ratio"]),
                f"{_ratio(entry['speedup_low'])}..{_ratio(entry['speedup_high'])}",
                f"{entry['greedy_exact_ratio']:.3f}",
                entry["verdict"],
            )
    out.print(table)
    out.print(f"report {folder.report_html}")


def print_repair(report: "RepairReport", out: Console) -> None:
    """Say what was damaged; the distil stage that follows makes it again."""
    problems = [*report.manifest, *report.shards.values(), *report.features.values()]
    for problem in problems[:MAX_PROBLEMS]:
        out.print(f"damaged: {problem}", markup=False)
    if len(problems) > MAX_PROBLEMS:
        out.print(f"... and {len(problems) - MAX_PROBLEMS} more")
    out.print(
        f"repair: {len(report.manifest)} manifests, {len(report.shards)} shards and {len(report.features)} "
        "feature files were damaged or missing; damaged files were moved to quarantine/"
        if problems
        else "repair: every shard and feature file is whole"
    )


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"

"""The short table at the end of a job."""

import json

from rich.console import Console
from rich.table import Table

from eagleray.recipe.run_folder import RunFolder


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


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"

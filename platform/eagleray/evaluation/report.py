"""The two files of a report: `report.json` for programs, `report.html` for people."""

from pathlib import Path
from typing import Any

from eagleray.evaluation.html import render_html
from eagleray.files import write_json_atomically, write_text_atomically


def write_report(folder: Path, report: dict[str, Any]) -> tuple[Path, Path]:
    """Write both files and return their paths, JSON first."""
    json_path, html_path = folder / "report.json", folder / "report.html"
    write_json_atomically(json_path, report)
    write_text_atomically(html_path, render_html(report))
    return json_path, html_path

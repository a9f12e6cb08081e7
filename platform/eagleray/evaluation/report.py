"""The one report: what it holds whoever measured, and its three files.

An engine in this process and servers behind HTTP are measured differently, and judged alike. Both fill these
sections; one that was not measured is None or empty, and the page says so.

- `drafters.<label>`: `summary`; `families`, the figures by category; `loads`, by what was asked for at once;
  `break_even`; `slices` by category and by length, with `worst_slice`; `prediction` by the cost model.
- `judged_by`: whether the verdicts are those of `families` or of `loads`.
- `families_measured_at`: the load of `families`.
- `exactness`: the checks of the gate, each with its outcome.
- `workloads`, `engine`, `dataset`, `truncation`, `training`, `stages`, `peak_rss_bytes`: of the run.
- `machine_load`: what the machine did beside, from `summarise_load`.
- `regime`, `definitions`.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from eagleray.evaluation.break_even import break_even
from eagleray.evaluation.config import BootstrapConfig
from eagleray.evaluation.exactness import Check
from eagleray.evaluation.html import render_html
from eagleray.evaluation.markdown import to_markdown
from eagleray.evaluation.prediction import Measured, predict_speeds
from eagleray.evaluation.slices import Outcome, slice_entries, worst_slice
from eagleray.evaluation.verdict import summarise
from eagleray.files import write_json_atomically, write_text_atomically

JudgedBy = Literal["families", "loads"]

RUN_SECTIONS: dict[str, Any] = {
    "engine": None,
    "workloads": {},
    "dataset": None,
    "truncation": {},
    "training": {},
    "stages": {},
    "peak_rss_bytes": None,
    "machine_load": None,
}


def drafter_section(
    label: str,
    judged_by: JudgedBy,
    *,
    families: Mapping[str, Mapping[str, Any]],
    loads: Mapping[str, Mapping[str, Any]],
    outcomes: Sequence[Outcome],
    measured: Sequence[Measured],
    bootstrap: BootstrapConfig,
) -> dict[str, Any]:
    """Return the section of one drafter.

    Args:
        families: Figures by category, at one load.
        loads: Figures by load, over all categories; those with a `concurrency` give the break-even.
        outcomes: Every prompt once, at one depth and load.
        measured: What the cost model is held against.
    """
    slices = slice_entries(outcomes, bootstrap)
    return {
        "summary": summarise(label, families if judged_by == "families" else loads),
        "families": families,
        "loads": loads,
        "break_even": break_even(
            {load["concurrency"]: load["speedup_ratio"] for load in loads.values() if load["concurrency"]}
        ),
        "slices": slices,
        "worst_slice": worst_slice(slices),
        "prediction": predict_speeds(measured),
    }


def assemble_report(
    *,
    drafters: Mapping[str, Mapping[str, Any]],
    judged_by: JudgedBy,
    families_measured_at: str,
    exactness: Sequence[Check],
    regime: Mapping[str, Any],
    definitions: Mapping[str, str],
    run: Mapping[str, Any],
    generated_at: datetime | None = None,
) -> dict[str, Any]:
    """Put the sections together.

    Args:
        regime: With its fingerprint.
        run: Those of `RUN_SECTIONS` that are known.
        generated_at: None takes the clock.
    """
    return {
        "generated_at": (generated_at or datetime.now(UTC)).isoformat(timespec="seconds"),
        "judged_by": judged_by,
        "families_measured_at": families_measured_at,
        "drafters": dict(drafters),
        "exactness": [check.model_dump(mode="json") for check in exactness],
        **RUN_SECTIONS,
        **run,
        "regime": dict(regime),
        "definitions": dict(definitions),
    }


def write_report(folder: Path, report: dict[str, Any]) -> tuple[Path, Path]:
    """Write `report.json` for programs, `report.html` for people and `report.md` for a review; returns the
    paths of the first two."""
    json_path, html_path = folder / "report.json", folder / "report.html"
    write_json_atomically(json_path, report)
    write_text_atomically(html_path, render_html(report))
    write_text_atomically(folder / "report.md", to_markdown(report))
    return json_path, html_path

"""The report in a page of Markdown: verdicts, the figures behind them, and what to know of them."""

from collections.abc import Iterator, Mapping
from typing import Any

from eagleray.evaluation.comparison import entries

Section = Mapping[str, Any]


def to_markdown(report: Section) -> str:
    """Write the summary."""
    lines = ["# Does drafting pay here?", ""]
    lines += [f"- {drafter['summary']}" for drafter in report["drafters"].values()]
    lines += [
        "",
        "| drafter | on | verdict | speedup (95 %) | tau (95 %) | same answers | prompts |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: |",
        *_rows(report),
        "",
        *(f"- {note}." for note in _notes(report)),
        "",
        f"`on` names a family of prompts, measured at {report['families_measured_at']}, or a load. Regime "
        f"{report['regime']['fingerprint']}; every field of it is in report.json.",
        "",
    ]
    return "\n".join(lines)


def _rows(report: Section) -> Iterator[str]:
    for label, drafter in report["drafters"].items():
        for name, entry in entries(drafter).items():
            yield (
                f"| {label} | {name} | {entry['verdict']} | {_interval(entry, 'speedup_ratio')} "
                f"| {_interval(entry, 'acceptance_length')} | {entry['greedy_exact_ratio']:.2%} "
                f"| {entry['prompts']} |"
            )


def _notes(report: Section) -> Iterator[str]:
    for check in report["exactness"]:
        yield f"{check['name']}, {check['subject']}: {check['outcome']} ({check['detail']})"
    if report["machine_load"] and report["machine_load"]["hint"]:
        yield f"machine: {report['machine_load']['hint']}"
    for label, drafter in report["drafters"].items():
        if drafter["break_even"]:
            yield f"{label}: {drafter['break_even']['reason']}"
        if (worst := drafter["worst_slice"]) is not None:
            entry = drafter["slices"][worst]
            yield (
                f"{label}: worst on {worst}, speedup {_interval(entry, 'speedup_ratio')}, "
                f"tau {_interval(entry, 'acceptance_length')} ({entry['verdict']})"
            )


def _interval(entry: Section, figure: str) -> str:
    stem = figure.removesuffix("_ratio")
    if entry[figure] is None:
        return "not measured"
    return f"{entry[figure]:.2f} ({entry[f'{stem}_low']:.2f} to {entry[f'{stem}_high']:.2f})"

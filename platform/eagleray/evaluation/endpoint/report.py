"""The report of an endpoint: verdict first, then speed, latency and where drafting stops to pay."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from eagleray.errors import DataError
from eagleray.evaluation.comparison import differing_fields
from eagleray.evaluation.definitions import DEFINITIONS
from eagleray.evaluation.endpoint.config import EndpointConfig
from eagleray.evaluation.endpoint.figures import break_even, load_entry
from eagleray.evaluation.endpoint.html import render_endpoint_html
from eagleray.evaluation.endpoint.load import PLAIN, Block
from eagleray.evaluation.verdict import summarise
from eagleray.files import write_json_atomically, write_text_atomically
from eagleray.settings import fingerprint

ENDPOINT_DEFINITIONS = {
    "acceptance_length": DEFINITIONS["acceptance_length"],
    "speedup_ratio": (
        "Tokens per second of decoding per user with the drafter over those without, from sums over prompts: "
        "from the first token of an answer to its last, as they reach the client over HTTP."
    ),
    "throughput_ratio": "All tokens over the wall time of whole blocks, waiting and prefill included.",
    "first_token_s": "From sending a request to its first token.",
    "inter_token_s": "Between tokens as they reach the client; tokens of one chunk come after no wait.",
    "user_tokens_per_s": "Decode speed of single answers.",
    "interval": "Bootstrap over prompts, for throughput over blocks: drawn again whole, with replacement.",
    "plain_drift_ratio": "How much plain decode speed differs between the two halves of a measurement.",
    "break_even": "Concurrency at which the speedup falls through 1.0, interpolated over its logarithm.",
    "verdict": DEFINITIONS["verdict"],
    "greedy_exact_ratio": "Share of drafted answers that equal those of the plain server, token for token.",
}


def shared_regime(regimes: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What all servers have in common, with the drafters set apart.

    Args:
        regimes: What each server tells, by arm.

    Raises:
        DataError: The servers differ in more than their drafter: they would not compare.
    """
    own = ("drafter_hash", "draft")
    common = {
        arm: {key: value for key, value in regime.items() if key not in own}
        for arm, regime in regimes.items()
    }
    for arm, regime in common.items():
        if differing := differing_fields(common[PLAIN], regime):
            raise DataError(
                f"The servers of {PLAIN} and {arm} differ in more than the drafter: {'; '.join(differing)}. "
                "A comparison needs the same target, engine and machine: serve both from one file."
            )
    drafted = {arm: regime for arm, regime in regimes.items() if arm != PLAIN}
    return {
        "server": common[PLAIN],
        "drafter_hashes": {arm: regime.get("drafter_hash") for arm, regime in drafted.items()},
        "drafts": {arm: regime.get("draft") for arm, regime in drafted.items()},
    }


def build_endpoint_report(
    blocks: Mapping[str, Sequence[Block]],
    config: EndpointConfig,
    regime: Mapping[str, Any],
    generated_at: datetime | None = None,
) -> dict[str, Any]:
    """Put the blocks of all loads into one report.

    Args:
        blocks: By name of the load.
        regime: Of the servers and of the load; see `shared_regime`.
        generated_at: None takes the clock.
    """
    drafters = {}
    for label in config.drafted:
        loads = {name: load_entry(label, measured, config) for name, measured in blocks.items()}
        speedups = {
            concurrency: loads[f"closed-{concurrency}"]["speedup_ratio"]
            for concurrency in config.concurrencies
        }
        drafters[label] = {
            "summary": summarise(label, loads),
            "break_even": break_even(speedups),
            "loads": loads,
        }
    return {
        "kind": "endpoint",
        "generated_at": (generated_at or datetime.now(UTC)).isoformat(timespec="seconds"),
        "drafters": drafters,
        "regime": {**regime, "fingerprint": fingerprint(dict(regime))},
        "definitions": ENDPOINT_DEFINITIONS,
    }


def write_endpoint_report(folder: Path, report: dict[str, Any]) -> tuple[Path, Path]:
    """Write `report.json`, `report.html` and `report.md`; returns the paths of the first two."""
    json_path, html_path = folder / "report.json", folder / "report.html"
    write_json_atomically(json_path, report)
    write_text_atomically(html_path, render_endpoint_html(report))
    write_text_atomically(folder / "report.md", to_markdown(report))
    return json_path, html_path


def to_markdown(report: Mapping[str, Any]) -> str:
    """The verdicts, the figures behind them and what to know of them, as Markdown."""
    rows = [
        _row(label, load, entry)
        for label, drafter in report["drafters"].items()
        for load, entry in drafter["loads"].items()
    ]
    notes = [note for label, drafter in report["drafters"].items() for note in _notes(label, drafter)]
    return "\n".join(
        [
            "# Does drafting pay here?",
            "",
            *(f"- {drafter['summary']}" for drafter in report["drafters"].values()),
            "",
            "| drafter | load | verdict | speedup | tau | first token p50, p95 (s) | tokens/s in all |",
            "| --- | --- | --- | ---: | ---: | ---: | ---: |",
            *rows,
            "",
            *(f"- {note}" for note in notes),
            "",
            f"Regime {report['regime']['fingerprint']}; every field of it is in report.json.",
            "",
        ]
    )


def _row(label: str, load: str, entry: Mapping[str, Any]) -> str:
    tau = "" if entry["acceptance_length"] is None else f"{entry['acceptance_length']:.2f}"
    first = entry["drafted"]["first_token_s"]
    return (
        f"| {label} | {load} | {entry['verdict']} | {entry['speedup_ratio']:.2f} "
        f"({entry['speedup_low']:.2f} to {entry['speedup_high']:.2f}) | {tau} "
        f"| {first['p50']:.3f}, {first['p95']:.3f} | {entry['drafted']['tokens_per_s']:.1f} |"
    )


def _notes(label: str, drafter: Mapping[str, Any]) -> list[str]:
    notes = [f"{label}: {drafter['break_even']['reason']}."]
    for load, entry in drafter["loads"].items():
        worst = entry["families"][entry["worst_family"]]
        notes.append(
            f"{label}, {load}: slowest on {entry['worst_family']}, {worst['speedup_ratio']:.2f} "
            f"({worst['verdict']})."
        )
        notes += [f"{label}, {load}: {anomaly}." for anomaly in entry["anomalies"]]
    return notes

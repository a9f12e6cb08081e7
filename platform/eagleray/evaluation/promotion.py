"""The gate between a report and production: a drafter goes on only if it wins where it will run."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from eagleray.evaluation.comparison import differing_fields, entries
from eagleray.evaluation.exactness import failures
from eagleray.settings import Settings

Report = Mapping[str, Any]


class Promotion(Settings):
    """A drafter that may be served, and on what evidence. Content of `promotion.json`."""

    label: str
    drafter_hash: str
    families: dict[str, dict[str, Any]]
    """Verdict, speedup, acceptance length and exactness by family of prompts, or by load."""
    regime: dict[str, Any]
    report_sha256: str
    """Of the report's content: what was signed off is what was measured."""
    signed_off_by: str
    signed_off_at: str
    """UTC, ISO 8601."""


def objections(
    report: Report, label: str, production: Mapping[str, Any], families: Sequence[str] = ()
) -> list[str]:
    """Say why a drafter is not promoted; empty when nothing speaks against it.

    Args:
        production: The regime it is to be served in.
        families: Families of prompts or loads that it must win on; all that the report judges by if empty.
    """
    if label not in report["drafters"]:
        return [f"the report has no drafter {label!r}; it has {', '.join(report['drafters'])}"]
    measured = entries(report["drafters"][label])
    reasons = [f"not the production regime: {one}" for one in differing_fields(production, report["regime"])]
    reasons += failures(report, label)
    reasons += [f"{family} was not measured" for family in families if family not in measured]
    for family in families or judged(report, label):
        if (entry := measured.get(family)) is None:
            continue
        exact = entry["greedy_exact_ratio"]
        if exact < 1.0:
            reasons.append(f"{family}: only {exact:.2%} of the answers equal plain decoding")
        if entry["verdict"] != "win":
            reasons.append(f"{family}: the verdict is {entry['verdict']} ({entry['verdict_reason']})")
    return reasons


def promote(
    report: Report,
    label: str,
    signed_off_by: str,
    families: Sequence[str] = (),
    now: datetime | None = None,
) -> Promotion:
    """Write down what a drafter is promoted on. Only after `objections` found none."""
    measured = entries(report["drafters"][label])
    facts = (
        "verdict",
        "speedup_ratio",
        "speedup_low",
        "speedup_high",
        "acceptance_length",
        "greedy_exact_ratio",
    )
    return Promotion(
        label=label,
        drafter_hash=report["regime"]["drafter_hashes"][label],
        families={
            family: {fact: measured[family][fact] for fact in facts}
            for family in families or judged(report, label)
        },
        regime=dict(report["regime"]),
        report_sha256=report_sha256(report),
        signed_off_by=signed_off_by,
        signed_off_at=(now or datetime.now(UTC)).isoformat(timespec="seconds"),
    )


def judged(report: Report, label: str) -> Mapping[str, Any]:
    """What a drafter's verdict is made of, unless something else is asked for."""
    section: Mapping[str, Any] = report["drafters"][label][report["judged_by"]]
    return section


def report_sha256(report: Report) -> str:
    """Hash of a report's content, whatever its spacing."""
    return hashlib.sha256(json.dumps(report, sort_keys=True).encode()).hexdigest()

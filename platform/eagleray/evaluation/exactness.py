"""The exactness gate: drafting may change how fast an answer comes, never what it is."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from eagleray.errors import DataError
from eagleray.settings import Settings

GREEDY = "greedy identity"
TARGET = "target"
"""Subject of checks that no drafter takes part in."""


class Check(Settings):
    """One check of the gate."""

    name: str
    subject: str
    """A drafter's label, or the target."""
    outcome: Literal["passed", "failed", "not run"]
    detail: str
    """What was compared, and what differs."""


def greedy_check(label: str, compared: int, divergences: list[str], near_ties: int = 0) -> Check:
    """Drafted answers against plain ones, token for token.

    Args:
        divergences: Where each answer that differs first does, near ties left out.
        near_ties: Answers that first differ where the target's own logits nearly tie.
    """
    if not divergences:
        equal = "all" if not near_ties else f"{compared - near_ties} of"
        but = f"; {near_ties} first differ at a near tie of the target's logits" if near_ties else ""
        return Check(
            name=GREEDY,
            subject=label,
            outcome="passed",
            detail=f"{equal} {compared} greedy answers equal plain decoding, token for token{but}",
        )
    return Check(
        name=GREEDY,
        subject=label,
        outcome="failed",
        detail=f"{len(divergences)} of {compared} greedy answers differ from plain decoding, "
        f"the first at {divergences[0]}",
    )


def not_run(name: str, subject: str, why: str) -> Check:
    """A check that was left out, so that nobody takes its absence for success."""
    return Check(name=name, subject=subject, outcome="not run", detail=why)


def require_passed(checks: Iterable[Check]) -> None:
    """Fail where a check that was asked for did.

    Raises:
        DataError: Names it, and what differs.
    """
    for check in checks:
        if check.outcome == "failed":
            raise DataError(
                f"{check.name} failed for {check.subject}: {check.detail}. The report holds the rest."
            )


def failures(report: Mapping[str, Any], label: str) -> list[str]:
    """What the gate holds against a drafter, the target's own failures included."""
    return [
        f"{check['name']} failed for {check['subject']}: {check['detail']}"
        for check in report["exactness"]
        if check["outcome"] == "failed" and check["subject"] in (label, TARGET)
    ]

"""Whether a version of an engine still has everything that we use of it, told from its source."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from eagleray.engines.installed import Installed


@dataclass(frozen=True, kw_only=True)
class Need:
    """Something of an engine that our adapter uses."""

    kind: Literal["flag", "field", "route", "counter", "symbol"]
    name: str
    """As it is spelled on the command line, in a request, an answer or metrics, as a path, or in the code."""
    files: tuple[str, ...]
    """Where it is declared, as patterns of paths within the package."""
    remedy: str
    """What does not work without it, and what changes that."""

    def is_met(self, engine: Installed) -> bool:
        """Whether the engine's source has it. A flag is a typed field of its arguments, or spelled out."""
        if self.kind == "flag":
            field = self.name.removeprefix("--").replace("-", "_")
            return field in engine.fields(*self.files) or self.name in engine.texts(*self.files)
        if self.kind == "symbol":
            return self.name in engine.symbols(*self.files)
        return self.name in engine.texts(*self.files) or self.name in engine.fields(*self.files)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that a doctor looked at."""

    subject: str
    ok: bool
    message: str


def probe(engine: Installed, needs: Sequence[Need], newest_known: str, is_newer: bool) -> list[Finding]:
    """Look for everything that we use.

    Args:
        newest_known: Version up to which the adapter was written.
        is_newer: Whether this one is later.
    """
    subject = f"{engine.package} {engine.version}"
    missing = [need for need in needs if not need.is_met(engine)]
    findings = [
        Finding(subject=subject, ok=False, message=f"has no {need.kind} {need.name}. {need.remedy}")
        for need in missing
    ]
    if is_newer:
        verdict = "all that is used of it is there" if not missing else "see what is missing"
        message = f"is newer than {newest_known}, the last version looked at; {verdict}"
        findings.append(Finding(subject=subject, ok=not missing, message=message))
    elif not missing:
        findings.append(
            Finding(subject=subject, ok=True, message=f"has all {len(needs)} things that are used")
        )
    return findings

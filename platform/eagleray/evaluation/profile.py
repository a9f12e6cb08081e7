"""What an evaluation tells a drafter folder's profile: tau, what drafting costs, and where that holds."""

from typing import Any

from eagleray.evaluation.definitions import DEFINITIONS

FACTS = ("acceptance_length", "draft_cost_ratio", "speedup_ratio")


def measured_facts(report: dict[str, Any], label: str) -> dict[str, Any]:
    """Facts of one drafter, by family of prompts and draft depth, with the regime they were measured in."""
    families = report["drafters"][label]["families"]
    return {
        "regime": report["regime"],
        "definitions": {name: DEFINITIONS[name] for name in FACTS},
        "families": {
            family: {
                depth: {name: measured[name] for name in FACTS}
                for depth, measured in entry["by_depth"].items()
            }
            for family, entry in families.items()
        },
    }

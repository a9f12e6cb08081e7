"""What the figures of a step say to people and dashboards, computed from its line in the metrics log."""

from collections.abc import Mapping, Sequence

from eagleray.speculation.costs import expected_tokens
from eagleray.training.step_clock import STEP_PHASES

SLOT = "accuracy_slot_"
SHARES = {
    "data": ("data",),
    "target": ("target",),
    "drafter": ("forward", "backward"),
    "exchange": ("collective",),
    "optimizer": ("optimizer",),
}
"""Parts of a step, in words that a person uses."""
AVERAGED_STEPS = 10
"""Steps that a line for people averages over."""


def accuracies(metrics: Mapping[str, float]) -> list[float]:
    """Share of right predictions of each draft slot."""
    slots = sorted(int(name.removeprefix(SLOT)) for name in metrics if name.startswith(SLOT))
    return [metrics[f"{SLOT}{slot}"] for slot in slots]


def tau_estimate(metrics: Mapping[str, float]) -> float:
    """Acceptance length if each slot were accepted as often as it was right in training.

    In training a slot mostly sees the true tokens before it, so this is an upper guide and no measured tau.
    """
    return expected_tokens(accuracies(metrics))


def phases_s(metrics: Mapping[str, float]) -> dict[str, float]:
    """Seconds of each phase that the step went through."""
    return {phase: metrics[f"{phase}_s"] for phase in STEP_PHASES if f"{phase}_s" in metrics}


def curves(metrics: Mapping[str, float]) -> dict[str, float]:
    """Names and values of a step's curves; names before a slash share a section."""
    drawn = {
        "loss": metrics["loss"],
        "learning_rate": metrics["learning_rate"],
        "grad_norm": metrics["grad_norm"],
        "tau/estimate": tau_estimate(metrics),
    }
    if "replay_tau" in metrics:
        drawn["tau/replay"] = metrics["replay_tau"]
    if "mirror_missed" in metrics:
        drawn["mirror/missed"] = metrics["mirror_missed"]
    drawn |= {f"accuracy/slot_{k}": value for k, value in enumerate(accuracies(metrics), start=1)}
    return drawn | {f"seconds/{phase}": seconds for phase, seconds in phases_s(metrics).items()}


def words(steps: Sequence[Mapping[str, float]]) -> str:
    """A line about a training, after the steps it has done."""
    newest, recent = steps[-1], steps[-AVERAGED_STEPS:]
    told = [f"loss {newest['loss']:.3f}", f"tau about {tau_estimate(newest):.2f}"]
    replayed = [step["replay_tau"] for step in steps if "replay_tau" in step]
    if replayed:
        told.append(f"replay tau {replayed[-1]:.2f}")
    if len(recent) > 1:
        tokens = recent[-1]["supervised_tokens"] - recent[0]["supervised_tokens"]
        told.append(f"{tokens / sum(step['step_s'] for step in recent[1:]):,.0f} tokens/s")
    whole_s = sum(sum(phases_s(step).values()) for step in recent)
    if whole_s > 0:
        shares = {
            part: sum(phases_s(step).get(phase, 0.0) for step in recent for phase in phases) / whole_s
            for part, phases in SHARES.items()
        }
        told.append(", ".join(f"{part} {share:.0%}" for part, share in shares.items() if share >= 0.005))
    return ", ".join(told)

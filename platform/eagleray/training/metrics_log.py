"""The figures of every optimiser step, as JSON Lines that survive kills and restarts."""

import json
from collections.abc import Sequence
from pathlib import Path


class MetricsLog:
    """One file per training. A step that was repeated after a restart counts once: its last line wins."""

    def __init__(self, path: Path):
        self.path = path

    def append(self, metrics: dict[str, float]) -> None:
        """Add the figures of one step."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(metrics) + "\n")

    def read(self) -> list[dict[str, float]]:
        """All steps in order; a last line that a kill cut short is left out."""
        if not self.path.exists():
            return []
        by_step: dict[int, dict[str, float]] = {}
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                metrics = json.loads(line)
            except json.JSONDecodeError:
                continue
            by_step[int(metrics["step"])] = metrics
        return [by_step[step] for step in sorted(by_step)]


def thin_out(points: Sequence[tuple[int, float]], most: int) -> list[tuple[int, float]]:
    """Average runs of neighbouring points so that at most `most` remain; a run is named by its last step."""
    width = max(1, -(-len(points) // most))
    runs = [points[start : start + width] for start in range(0, len(points), width)]
    return [(run[-1][0], sum(value for _, value in run) / len(run)) for run in runs]

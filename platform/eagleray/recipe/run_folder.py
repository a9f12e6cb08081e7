"""The folder of a run: which file lies where."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RunFolder:
    """Paths of everything a run makes."""

    path: Path

    @property
    def recipe(self) -> Path:
        """The recipe as it was resolved at the last start."""
        return self.path / "recipe.json"

    @property
    def stages(self) -> Path:
        """One record per stage."""
        return self.path / "stages"

    @property
    def train_prompts(self) -> Path:
        """Prompts to distil."""
        return self.path / "prompts" / "train.jsonl"

    @property
    def held_out_prompts(self) -> Path:
        """Prompts to evaluate on; none of them is distilled."""
        return self.path / "prompts" / "held_out.jsonl"

    @property
    def rejected_prompts(self) -> Path:
        """Rows that gave no prompt, and duplicates."""
        return self.path / "prompts" / "rejects.jsonl"

    @property
    def not_shown_prompts(self) -> Path:
        """Held-out prompts that the target cannot be shown."""
        return self.path / "prompts" / "not_shown.jsonl"

    @property
    def prompt_counts(self) -> Path:
        """How many prompts were drawn, rejected and found twice."""
        return self.path / "prompts" / "counts.json"

    @property
    def dataset(self) -> Path:
        """Shards and manifest."""
        return self.path / "dataset"

    @property
    def features(self) -> Path:
        """Stored target features."""
        return self.path / "features"

    @property
    def training(self) -> Path:
        """Parent of one folder per drafter label: checkpoints and metrics."""
        return self.path / "training"

    @property
    def incidents(self) -> Path:
        """One numbered folder per incident that the watchdog saw."""
        return self.path / "incidents"

    def drafter(self, label: str) -> Path:
        """The exported drafter."""
        return self.path / "drafters" / label

    @property
    def evaluation(self) -> Path:
        """One JSON file per finished measurement."""
        return self.path / "evaluation"

    @property
    def report_json(self) -> Path:
        """The report as data."""
        return self.path / "report.json"

    @property
    def report_html(self) -> Path:
        """The report as a page."""
        return self.path / "report.html"

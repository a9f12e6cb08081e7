"""What is trained on: samples, or runs of positions of them.

Positions count from the beginning of a row. Drafters place tokens by rotary angles, whose attention knows
distances only, so a row in the middle of a sample is attended to as it would be at its true place.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from eagleray.corpus.packed import LazySequence
from eagleray.corpus.sample import Sample
from eagleray.corpus.windows import Window, cut_windows
from eagleray.training.batches import BatchPlan
from eagleray.training.config import TrainingConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingRow:
    """Positions [start, end) of a sample."""

    sample: Sample
    start: int
    end: int
    supervised: tuple[tuple[int, int], ...]
    """Half-open index spans of the tokens to learn, counted from the beginning of the row."""

    @property
    def length(self) -> int:
        """Tokens of the row."""
        return self.end - self.start

    @property
    def supervised_tokens(self) -> int:
        """Tokens to learn."""
        return sum(end - start for start, end in self.supervised)


class TrainingRows(LazySequence[TrainingRow]):
    """The rows of samples: one each, or as many as it takes where long samples are trained on in windows.

    What is remembered of a row is where it comes from and how long it is.
    """

    def __init__(self, samples: Sequence[Sample], config: TrainingConfig):
        self._samples = samples
        self._config = config
        self._sample = array("q")
        self._window = array("q")
        self.lengths = array("q")
        """Tokens of each row."""
        for index, sample in enumerate(samples):
            for number, window in enumerate(windows_of(sample, config)):
                self._sample.append(index)
                self._window.append(number)
                self.lengths.append(window.end - window.start)

    def __len__(self) -> int:
        return len(self.lengths)

    def plan(self) -> BatchPlan:
        """Batches of every step.

        Raises:
            ConfigError: There are fewer rows than a global batch holds.
        """
        return BatchPlan(
            self.lengths,
            self._config.global_batch_size,
            window_batches=self._config.length_window_batches,
            seed=self._config.seed,
        )

    def make(self, index: int) -> TrainingRow:
        """Read the sample and cut it."""
        sample = self._samples[self._sample[index]]
        window = windows_of(sample, self._config)[self._window[index]]
        return TrainingRow(
            sample=sample,
            start=window.start,
            end=window.end,
            supervised=tuple((start - window.start, end - window.start) for start, end in window.supervised),
        )


def windows_of(sample: Sample, config: TrainingConfig) -> list[Window]:
    """What is trained on of a sample; nothing if no anchor is left within the training length."""
    return cut_windows(len(sample.input_ids), sample.supervised, config.max_length, config.long_samples)


def first_row(sample: Sample, max_length: int) -> TrainingRow:
    """The beginning of a sample as a row."""
    end = min(len(sample.input_ids), max_length)
    spans = ((start, min(stop, end)) for start, stop in sample.supervised)
    return TrainingRow(
        sample=sample, start=0, end=end, supervised=tuple(span for span in spans if span[0] < span[1])
    )

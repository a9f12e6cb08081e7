"""A bench file says what was measured, on what, and how surely."""

import json
from pathlib import Path

import pytest

from jobs.bench import Bench, exact, ratio_figure, write_bench


def test_a_bench_file_reads_back_with_every_figure_and_the_regime(tmp_path: Path) -> None:
    figures = {"eagle3.peak_rss_bytes": exact(5.0, "bytes"), "tau": ratio_figure([(3, 1), (1, 1)], "tokens")}
    path = write_bench("train", figures, {"depth": 5}, tmp_path)
    assert path == tmp_path / "train.json"
    bench = Bench.model_validate(json.loads(path.read_text()))
    assert bench.figures == figures
    assert bench.regime == {"depth": 5}
    assert bench.machine.torch_version


def test_a_ratio_pools_its_rows_and_its_interval_spans_what_resampling_gives() -> None:
    figure = ratio_figure([(9, 3), (1, 1)], "tokens")
    assert figure.value == pytest.approx(10 / 4)
    assert (figure.low, figure.high, figure.n) == (pytest.approx(1.0), pytest.approx(3.0), 2)

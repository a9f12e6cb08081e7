from pathlib import Path

from eagleray.training.metrics_log import MetricsLog, thin_out


def test_a_repeated_step_counts_once_and_its_last_line_wins(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "deep" / "metrics.jsonl")
    for step, loss in ((1, 5.0), (2, 4.0), (3, 3.0), (2, 4.5), (3, 3.5)):
        log.append({"step": step, "loss": loss})
    assert [(m["step"], m["loss"]) for m in log.read()] == [(1, 5.0), (2, 4.5), (3, 3.5)]


def test_a_line_that_a_kill_cut_short_is_left_out(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.append({"step": 1, "loss": 5.0})
    with log.path.open("a") as stream:
        stream.write('{"step": 2, "lo')
    assert [m["step"] for m in log.read()] == [1]
    assert MetricsLog(tmp_path / "none.jsonl").read() == []


def test_thinning_averages_neighbours_and_keeps_the_last_step() -> None:
    points = [(step, float(step)) for step in range(1, 8)]
    assert thin_out(points, 10) == points
    assert thin_out(points, 3) == [(3, 2.0), (6, 5.0), (7, 7.0)]

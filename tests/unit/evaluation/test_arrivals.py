"""Arrivals of a log, replayed at its pace or faster, and beside them those of chance."""

import json
from statistics import mean

import pytest

from eagleray.errors import DataError
from eagleray.evaluation.endpoint.arrivals import read_gaps_s
from eagleray.evaluation.endpoint.config import ArmConfig, EndpointConfig, ReplayConfig
from eagleray.evaluation.endpoint.load import Load, plan_loads


def log(path, rows):
    path.write_text("".join(json.dumps({"prompt": "Hi", **row}) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize(
    "times",
    [
        [{"arrived_s": 103.5}, {"arrived_s": 100}, {"arrived_s": 103}],
        [{"timestamp": f"2030-01-01T00:00:0{s}+00:00"} for s in ("3.500", "0", "3")],
        [{"created": 103.5}, {"created": 100}, {"created": 103}],
    ],
    ids=["captured", "ISO 8601", "OpenAI"],
)
def test_gaps_are_those_of_the_log_in_the_order_of_time(tmp_path, times):
    assert read_gaps_s(log(tmp_path / "a.jsonl", times)) == pytest.approx((3.0, 0.5))


@pytest.mark.parametrize("row", [{}, {"timestamp": "yesterday"}, {"arrived_s": None}, {"created": True}])
def test_a_row_without_a_time_is_refused_with_its_place(tmp_path, row):
    with pytest.raises(DataError, match=r"a\.jsonl:2 does not say when.*arrived_s"):
        read_gaps_s(log(tmp_path / "a.jsonl", [{"arrived_s": 1}, row]))


def test_a_log_of_one_request_has_nothing_to_replay(tmp_path):
    with pytest.raises(DataError, match="at least two"):
        read_gaps_s(log(tmp_path / "a.jsonl", [{"arrived_s": 1}]))


def test_a_replay_goes_on_from_block_to_block_and_begins_anew_behind_the_end(tmp_path):
    path = log(tmp_path / "a.jsonl", [{"arrived_s": time} for time in (0, 4, 6)])
    arm = ArmConfig(url="http://127.0.0.1:1")
    config = EndpointConfig(plain=arm, drafted={"d": arm}, replays=(ReplayConfig(log=path, speed=2.0),))
    load = plan_loads(config)[-1]
    assert load.name == "replay-a-x2"
    many = config.model_copy(update={"replays": (ReplayConfig(log=str(tmp_path / "*.jsonl")),)})
    assert plan_loads(many)[-1].name == f"replay-{tmp_path.name}-x1"
    assert load.waits_s(0, 3, seed=0) == [2.0, 1.0, 2.0]
    assert load.waits_s(3, 2, seed=0) == [1.0, 2.0]


def test_poisson_arrivals_have_their_rate_and_are_the_same_for_every_server():
    load = Load(arrivals_per_s=4.0)
    waits_s = load.waits_s(0, 4000, seed=1)
    assert mean(waits_s) == pytest.approx(0.25, rel=0.1)
    assert load.waits_s(0, 4000, seed=1) == waits_s
    assert load.waits_s(8, 4000, seed=1) != waits_s

"""Conditional spaces: what is in them, and what Optuna may draw from them."""

from collections.abc import Callable

import optuna
import pytest
from pydantic import ValidationError

from eagleray.errors import ConfigError
from eagleray.tuning.config import Choice, Integer, Point, Real, SpaceConfig
from eagleray.tuning.space import Space

MakePoint = Callable[..., Point]


def test_points_are_those_that_the_conditions_leave(blocks: SpaceConfig) -> None:
    assert [point.name for point in Space(blocks).points()] == [
        "plain",
        "chain depth=1",
        "chain depth=2",
        "chain depth=3",
        "block block_size=2 depth=1",
        "block block_size=4 depth=1",
        "block block_size=4 depth=2",
        "block block_size=4 depth=3",
    ]


def test_a_parameter_exists_only_under_its_condition() -> None:
    config = SpaceConfig(
        plain=False,
        drafters={
            "a": {
                "optimizer": Choice(values=("muon", "adamw")),
                "decay": Choice(values=(0.0, 0.1), when={"optimizer": ("adamw",)}),
            }
        },
    )
    assert [point.values for point in Space(config).points()] == [
        {"optimizer": "muon"},
        {"optimizer": "adamw", "decay": 0.0},
        {"optimizer": "adamw", "decay": 0.1},
    ]


@pytest.mark.parametrize("sampler", [optuna.samplers.RandomSampler(0), optuna.samplers.TPESampler(seed=0)])
def test_whatever_a_sampler_draws_is_in_the_space(
    blocks: SpaceConfig, sampler: optuna.samplers.BaseSampler
) -> None:
    space, study = Space(blocks), optuna.create_study(sampler=sampler)
    points = list(space.points())
    for _ in range(40):
        trial = study.ask()
        drawn = space.suggest(trial)
        assert drawn in points
        assert space.point(trial.params) == drawn
        assert space.params(drawn) == trial.params
        study.tell(trial, float(points.index(drawn)))


@pytest.mark.parametrize(
    ("drafter", "values", "named"),
    [
        ("medusa", {}, "'medusa'"),
        ("chain", {}, "depth is None"),
        ("chain", {"depth": 4}, "depth is 4"),
        ("block", {"block_size": 2, "depth": 2}, "depth is 2"),
        ("chain", {"depth": 1, "block_size": 4}, "block_size does not exist"),
    ],
)
def test_a_point_outside_the_space_is_refused_by_name(
    blocks: SpaceConfig, point: MakePoint, drafter: str, values: dict[str, int], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        Space(blocks).params(point(drafter, **values))


def test_a_space_with_real_parameters_has_no_list_of_points() -> None:
    space = Space(SpaceConfig(plain=False, drafters={"a": {"lr": Real(low=1e-4, high=1e-2, log=True)}}))
    assert not space.finite
    with pytest.raises(ConfigError, match=r"study\.sampler"):
        list(space.points())


@pytest.mark.parametrize(
    "parameters",
    [
        {"depth": {"kind": "integer", "low": 1, "high": 3, "below": "block_size"}},
        {"x": {"kind": "choice", "values": [1], "when": {"y": [1]}}},
        {
            "block_size": {"kind": "choice", "values": [1, 4]},
            "depth": {"kind": "integer", "low": 1, "high": 3, "below": "block_size"},
        },
        {"depth": {"kind": "integer", "low": 3, "high": 1}},
        {"lr": {"kind": "real", "low": 0.0, "high": 1.0, "log": True}},
    ],
    ids=["below nothing", "condition on nothing", "no room below", "empty range", "ratio from 0"],
)
def test_a_space_that_cannot_be_drawn_from_is_refused_on_paper(parameters: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        SpaceConfig.model_validate({"drafters": {"a": parameters}})


def test_steps_of_an_integer_are_kept() -> None:
    config = SpaceConfig(plain=False, drafters={"a": {"n": Integer(low=2, high=9, step=3)}})
    assert [point.values["n"] for point in Space(config).points()] == [2, 5, 8]

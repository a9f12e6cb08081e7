import pytest

from eagleray.errors import ConfigError
from eagleray.evaluation.config import EvaluationConfig
from eagleray.evaluation.units import UNIT, LoadUnit, plan_units

CONFIG = EvaluationConfig(
    depths={"eagle3": (3, 5), "lookup": (5,)}, timing_prompts_per_family=2, hf_prompts=3, default_depths=(2,)
)


def test_every_measurement_is_planned_once_and_its_name_is_stable() -> None:
    units = plan_units(CONFIG, {"code": 3, "prose": 1}, {"eagle3": None, "lookup": None})
    assert [unit.name for unit in units] == [
        "answers-code-plain",
        "answers-code-eagle3-3",
        "answers-code-eagle3-5",
        "answers-code-lookup-5",
        "answers-prose-plain",
        "answers-prose-eagle3-3",
        "answers-prose-eagle3-5",
        "answers-prose-lookup-5",
        "reference-code-000",
        "reference-prose-000",
        "reference-code-001",
        "timing-code-000",
        "timing-prose-000",
        "timing-code-001",
    ]


def test_loads_take_each_drafter_at_its_deepest_and_only_whole_groups() -> None:
    config = CONFIG.model_copy(update={"concurrencies": (2, 8), "groups_per_concurrency": 3})
    units = plan_units(config, {"code": 3, "prose": 2}, {"eagle3": None, "lookup": None})
    loads = [unit for unit in units if isinstance(unit, LoadUnit)]
    assert [unit.name for unit in loads] == ["load-002-000", "load-002-001"]
    assert [draft.name for draft in loads[0].drafts] == ["eagle3-5", "lookup-5"]


def test_units_survive_json() -> None:
    config = CONFIG.model_copy(update={"concurrencies": (2,)})
    for unit in plan_units(config, {"code": 2}, {"eagle3": 7, "lookup": None}):
        assert UNIT.validate_json(unit.model_dump_json()) == unit


def test_drafters_that_depths_does_not_name_take_the_default() -> None:
    units = plan_units(CONFIG, {"code": 1}, {"eagle3": None, "lookup": None, "other": None})
    assert "answers-code-other-2" in {unit.name for unit in units}


def test_a_label_without_a_drafter_is_refused_with_the_labels_there_are() -> None:
    with pytest.raises(ConfigError, match=r"names 'lookup'.*eagle3"):
        plan_units(CONFIG, {"code": 1}, {"eagle3": None})


def test_a_depth_beyond_the_drafter_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"evaluation\.depths\.eagle3 holds 5.*at most 4"):
        plan_units(CONFIG, {"code": 1}, {"eagle3": 4, "lookup": None})

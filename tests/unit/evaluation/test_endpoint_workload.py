"""Synthetic prompts have the lengths that were asked for, and a label that nobody can miss."""

import pytest

from eagleray.errors import ConfigError
from eagleray.evaluation.endpoint.config import EndpointEvaluation, SyntheticConfig
from eagleray.evaluation.endpoint.workload import synthetic_prompts
from eagleray.evaluation.workloads import describe_workloads, group_by_family
from eagleray.settings import validate


def test_every_length_is_a_family_of_its_own_that_is_called_synthetic():
    prompts = synthetic_prompts(SyntheticConfig(prompt_tokens=(16, 300), count=3), range(5, 50))
    families = group_by_family(prompts)
    assert {name: [len(item.prompt_ids) for item in items] for name, items in families.items()} == {
        "synthetic-16": [16] * 3,
        "synthetic-300": [300] * 3,
    }
    assert {token for item in prompts for token in item.prompt_ids} <= set(range(5, 50))
    assert len({item.prompt_ids for item in prompts}) == len({item.prompt.prompt_id for item in prompts}) == 6
    described = describe_workloads(families, None)
    assert "random tokens" in described["synthetic-16"]["source"]
    assert described["synthetic-16"]["in_training_families"] is None


def test_the_same_seed_gives_the_same_prompts():
    config = SyntheticConfig(prompt_tokens=(8,), count=2, seed=3)
    assert synthetic_prompts(config, range(99)) == synthetic_prompts(config, range(99))
    other = config.model_copy(update={"seed": 4})
    assert synthetic_prompts(config, range(99)) != synthetic_prompts(other, range(99))


@pytest.mark.parametrize("more", [{}, {"prompts": "a.jsonl", "synthetic": {"prompt_tokens": [8]}}])
def test_prompts_come_from_a_file_or_from_chance(more):
    arm = {"url": "http://127.0.0.1:1"}
    content = {"out": "out", "endpoint": {"plain": arm, "drafted": {"d": arm}}, **more}
    with pytest.raises(ConfigError, match="either prompts"):
        validate(EndpointEvaluation, content, "evaluate.yaml")

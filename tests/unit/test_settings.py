from pathlib import Path

import pytest

from eagleray.errors import ConfigError
from eagleray.settings import Settings, apply_overrides, fingerprint, read_yaml, validate


class Inner(Settings):
    rate: float = 0.5


class Outer(Settings):
    name: str
    inner: Inner = Inner()


def test_unknown_key_is_named_with_its_place() -> None:
    with pytest.raises(ConfigError, match=r"inner\.ratee: unknown key"):
        validate(Outer, {"name": "a", "inner": {"ratee": 1}}, "Recipe x")


def test_missing_key_and_wrong_type_are_both_reported_in_one_paragraph() -> None:
    with pytest.raises(ConfigError) as caught:
        validate(Outer, {"inner": {"rate": "fast"}}, "Recipe x")
    message = str(caught.value)
    assert "name: required" in message
    assert "inner.rate" in message
    assert "'fast'" in message
    assert "\n" not in message


def test_overrides_pass_the_same_validation() -> None:
    content = apply_overrides({"name": "a"}, ["inner.rate=0.25", "name=b"])
    assert validate(Outer, content, "x") == Outer(name="b", inner=Inner(rate=0.25))
    with pytest.raises(ConfigError, match=r"inner\.speed"):
        validate(Outer, apply_overrides({"name": "a"}, ["inner.speed=1"]), "x")


@pytest.mark.parametrize("override", ["inner.rate", "=3", "name.deeper=1"])
def test_malformed_overrides_are_refused(override: str) -> None:
    with pytest.raises(ConfigError, match="Override"):
        apply_overrides({"name": "a"}, [override])


def test_overrides_leave_the_original_untouched() -> None:
    content = {"inner": {"rate": 1.0}}
    apply_overrides(content, ["inner.rate=2"])
    assert content == {"inner": {"rate": 1.0}}


@pytest.mark.parametrize("text", ["- a\n- b\n", "a: [1", "just words"])
def test_a_recipe_that_is_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"r\.yaml"):
        read_yaml(path)


def test_a_missing_recipe_names_its_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml does not exist"):
        read_yaml(tmp_path / "nowhere.yaml")


def test_fingerprint_ignores_key_order_and_sees_every_value() -> None:
    assert fingerprint({"a": 1, "b": [1, 2]}) == fingerprint({"b": [1, 2], "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})
    assert fingerprint(Outer(name="a")) == fingerprint({"name": "a", "inner": {"rate": 0.5}})

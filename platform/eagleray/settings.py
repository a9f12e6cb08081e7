"""Strict settings: YAML in, frozen records out.

Every section of a recipe derives from `Settings`. Unknown keys are errors, dotted overrides
(`training.learning_rate=3e-4`) pass the same validation, and a fingerprint names everything
that a record holds. Knows no section by name.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from eagleray.errors import ConfigError

SettingsT = TypeVar("SettingsT", bound="Settings")


class Settings(BaseModel):
    """Base of every configuration record: immutable, no unknown keys, no silent coercion of names."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


def fingerprint(content: Any) -> str:
    """Hash a record or plain data to 16 hexadecimal digits, independent of key order."""
    if isinstance(content, BaseModel):
        content = content.model_dump(mode="json")
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def differences(old: Any, new: Any, place: str = "") -> list[str]:
    """Say where two nestings of plain data differ, one line a value: `a.b was 1, now 2`."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            line
            for key in sorted(old.keys() | new.keys())
            for line in differences(old.get(key), new.get(key), f"{place}.{key}" if place else key)
        ]
    return [] if old == new else [f"{place} was {old!r}, now {new!r}"]


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping.

    Raises:
        ConfigError: The file is missing, is not YAML, or is not a mapping.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"Recipe file {path} does not exist (looked in {Path.cwd()}). "
            "Give the path of a YAML recipe; the ones that ship are in configs/."
        ) from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"Recipe file {path} cannot be read as YAML: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(
            f"Recipe file {path} holds a {type(content).__name__}; expected a mapping of sections."
        )
    return content


def apply_overrides(content: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Return `content` with dotted `key.path=value` overrides applied; values are parsed as YAML.

    Raises:
        ConfigError: An override has no `=`, or its path runs through a value that is not a mapping.
    """
    merged: dict[str, Any] = json.loads(json.dumps(content))
    for override in overrides:
        dotted, separator, text = override.partition("=")
        if not separator or not dotted:
            raise ConfigError(
                f"Override {override!r} is not of the form key.path=value, e.g. evaluation.workers=2."
            )
        *parents, leaf = dotted.split(".")
        section = merged
        for parent in parents:
            section = section.setdefault(parent, {})
            if not isinstance(section, dict):
                raise ConfigError(f"Override {override!r}: {parent!r} is a value, not a section.")
        section[leaf] = yaml.safe_load(text)
    return merged


def validate(schema: type[SettingsT], content: Mapping[str, Any], origin: str) -> SettingsT:
    """Build a record from plain data.

    Args:
        origin: Where the data came from, for the error text.

    Raises:
        ConfigError: One paragraph that lists each wrong key, the value seen and what was expected.
    """
    try:
        return schema.model_validate(content)
    except ValidationError as error:
        raise ConfigError(f"{origin} is not valid. {_explain(error)}") from None


def _explain(error: ValidationError) -> str:
    sentences = []
    for problem in error.errors():
        place = ".".join(str(part) for part in problem["loc"]) or "(top level)"
        if problem["type"] == "extra_forbidden":
            sentences.append(f"{place}: unknown key; check its spelling and section.")
        elif problem["type"] == "missing":
            sentences.append(f"{place}: required, but missing.")
        else:
            seen = "" if isinstance(problem["input"], dict) else f" (saw {problem['input']!r})"
            message = problem["msg"].removeprefix("Value error, ").rstrip(".")
            sentences.append(f"{place}: {message}{seen}.")
    return " ".join(sentences)

"""From a recipe file and overrides to a checked recipe."""

from collections.abc import Sequence
from pathlib import Path

from eagleray.errors import ConfigError
from eagleray.recipe.sections import PipelineRecipe
from eagleray.settings import apply_overrides, read_yaml, validate

RECIPES = {"pipeline": PipelineRecipe}
"""Recipe schema by the value of its first key, `kind`."""


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> PipelineRecipe:
    """Read, override and validate a recipe.

    Raises:
        ConfigError: The file, an override or a value is wrong; one paragraph says what and where.
    """
    content = apply_overrides(read_yaml(path), overrides)
    kind = content.get("kind")
    if kind not in RECIPES:
        raise ConfigError(f"Recipe {path}: kind is {kind!r}; expected one of {', '.join(RECIPES)}.")
    return validate(RECIPES[kind], content, f"Recipe {path}")

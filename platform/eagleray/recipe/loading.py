"""From a recipe file and overrides to a checked recipe."""

from collections.abc import Sequence
from pathlib import Path

from eagleray.errors import ConfigError
from eagleray.recipe.sections import PipelineRecipe, SweepRecipe
from eagleray.settings import apply_overrides, read_yaml, validate

RECIPES: dict[str, type[PipelineRecipe] | type[SweepRecipe]] = {
    "pipeline": PipelineRecipe,
    "sweep": SweepRecipe,
}
"""Recipe schema by the value of its first key, `kind`."""


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> PipelineRecipe:
    """Read, override and validate a pipeline recipe.

    Raises:
        ConfigError: The file, an override or a value is wrong; one paragraph says what and where.
    """
    recipe = load_any(path, overrides)
    if not isinstance(recipe, PipelineRecipe):
        raise ConfigError(f"Recipe {path}: kind is {recipe.kind!r}; this job takes the kind 'pipeline'.")
    return recipe


def load_sweep(path: Path, overrides: Sequence[str] = ()) -> tuple[SweepRecipe, PipelineRecipe]:
    """Read a sweep recipe, and the pipeline recipe that it tunes.

    Raises:
        ConfigError: A file, an override or a value is wrong; the space has a label that the pipeline has not.
    """
    recipe = load_any(path, overrides)
    if not isinstance(recipe, SweepRecipe):
        raise ConfigError(f"Recipe {path}: kind is {recipe.kind!r}; this job takes the kind 'sweep'.")
    pipeline = load_recipe(recipe.pipeline, recipe.overrides)
    for section, labels in (
        (recipe.serving, {*pipeline.drafters, *pipeline.baselines}),
        (recipe.training, set(pipeline.drafters)),
    ):
        if section is not None and (unknown := sorted(set(section.space.drafters) - labels)):
            raise ConfigError(
                f"Recipe {path}: the space names the drafter {unknown[0]!r}; {recipe.pipeline} has "
                f"{', '.join(sorted(labels))}."
            )
    return recipe, pipeline


def load_any(path: Path, overrides: Sequence[str] = ()) -> PipelineRecipe | SweepRecipe:
    """Read, override and validate a recipe of any kind.

    Raises:
        ConfigError: The file, an override or a value is wrong; one paragraph says what and where.
    """
    content = apply_overrides(read_yaml(path), overrides)
    kind = content.get("kind")
    if kind not in RECIPES:
        raise ConfigError(f"Recipe {path}: kind is {kind!r}; expected one of {', '.join(RECIPES)}.")
    return validate(RECIPES[kind], content, f"Recipe {path}")

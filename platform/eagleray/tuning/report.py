"""What a sweep leaves: a result file and a recipe per workload, one page, and the memory of the regime."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from eagleray.evaluation import html
from eagleray.files import write_json_atomically, write_text_atomically
from eagleray.tuning import plots
from eagleray.tuning.config import PLAIN, Point
from eagleray.tuning.outcome import DEFINITIONS
from eagleray.tuning.result import Result, to_plain
from eagleray.tuning.serving import ServingPoint
from eagleray.tuning.training import DATA_SHARE, with_values

PAGE = "sweep.html"
TRAINING_PAGE = "training.html"
TEMPLATE = "page.html.j2"
MANY_EPOCHS = 1000
"""More passes than `max_steps` allows, so that the steps alone say when a training ends."""


def write_serving_report(
    folder: Path,
    memory: Path,
    results: Mapping[str, Result],
    pipeline: Mapping[str, Any],
    drafters: Mapping[str, Path],
) -> Path:
    """Write everything and return the path of the page.

    Args:
        memory: Folder of all results, by regime.
        pipeline: The pipeline recipe that was tuned, as plain data.
        drafters: Folders of the trained drafters, by label.
    """
    for workload, result in results.items():
        write_json_atomically(folder / f"best_{workload}.json", to_plain(result))
        write_json_atomically(memory / f"{result.regime_fingerprint}.json", to_plain(result))
        files = {
            f"best_{workload}.yaml": best_recipe(result, pipeline),
            f"serve_{workload}.yaml": serve_file(result, pipeline, drafters),
        }
        for name, text in files.items():
            if text is not None:
                write_text_atomically(folder / name, text)
    write_text_atomically(folder / PAGE, render_page(results, pipeline))
    return folder / PAGE


def write_training_report(folder: Path, result: Result, pipeline: Mapping[str, Any], budget_s: float) -> Path:
    """Write the result of a training sweep, its page and the best recipe, and return the path of the page.

    Args:
        budget_s: CPU seconds of one whole training.
    """
    write_json_atomically(folder / "best_training.json", to_plain(result))
    recipe = best_training_recipe(result, pipeline)
    if recipe is not None:
        write_text_atomically(folder / "best_training.yaml", recipe)
    write_text_atomically(folder / TRAINING_PAGE, render_training_page(result, recipe, budget_s))
    return folder / TRAINING_PAGE


def best_training_recipe(result: Result, pipeline: Mapping[str, Any]) -> str | None:
    """The pipeline recipe with the chosen drafter's section as it was trained, for as many steps."""
    if result.confirmation is None:
        return None
    chosen = result.confirmation.chosen
    facts = next(
        trial.facts for trial in result.trials if trial.point == chosen and trial.state == "complete"
    )
    section = with_values(pipeline["drafters"][chosen.drafter], chosen)
    section["training"] = {**section["training"], "max_steps": facts["steps"], "epochs": MANY_EPOCHS}
    evaluation = {**pipeline["evaluation"], "depths": {chosen.drafter: [facts["depth"]]}}
    narrowed = {
        **pipeline,
        "drafters": {chosen.drafter: section},
        "baselines": {},
        "evaluation": evaluation,
    }
    share = chosen.values.get(DATA_SHARE)
    note = f"\n# It was trained on the first {share:.0%} of the samples." if isinstance(share, float) else ""
    return f"# {headline(result)}{note}\n" + yaml.safe_dump(narrowed, sort_keys=False)


def trained_cpu_s(result: Result) -> float:
    """CPU seconds that the trials of a training sweep were trained."""
    return float(sum(trial.facts.get("cpu_s", 0.0) for trial in result.trials))


def best_recipe(result: Result, pipeline: Mapping[str, Any]) -> str | None:
    """The pipeline recipe narrowed to the chosen drafter at the chosen depth; None where that is none of its
    trained drafters."""
    if result.confirmation is None or result.confirmation.chosen.drafter not in pipeline["drafters"]:
        return None
    chosen = result.confirmation.chosen
    evaluation = {**pipeline["evaluation"], "depths": {chosen.drafter: [chosen.values["depth"]]}}
    narrowed = {
        **pipeline,
        "drafters": {chosen.drafter: pipeline["drafters"][chosen.drafter]},
        "baselines": {},
        "evaluation": evaluation,
    }
    regime = f"Measured in regime {result.regime_fingerprint}; another regime needs a sweep of its own."
    return f"# {headline(result)}\n# {regime}\n" + yaml.safe_dump(narrowed, sort_keys=False)


def serve_file(result: Result, pipeline: Mapping[str, Any], drafters: Mapping[str, Path]) -> str | None:
    """The chosen setting as a file that `serve run` takes; None where nothing feasible was measured.

    Args:
        drafters: Folders of the trained drafters, by label.
    """
    if result.confirmation is None:
        return None
    chosen = result.confirmation.chosen
    arguments: dict[str, Any] = {"target": pipeline["target"], "engine": pipeline["engine"]}
    if chosen.drafter != PLAIN:
        serving = ServingPoint.model_validate(chosen.values)
        tree = serving.tree.model_dump() if serving.tree else None
        arguments["draft"] = {
            "depth": serving.depth,
            "adaptive": serving.adaptive,
            "block_size": serving.block_size,
            "tree": tree,
        }
    if chosen.drafter in drafters:
        arguments["draft"]["folder"] = str(drafters[chosen.drafter])
    elif chosen.drafter != PLAIN:
        arguments["draft"]["drafter"] = pipeline["baselines"][chosen.drafter]
    application = {
        "name": result.workload,
        "route_prefix": f"/{result.workload}",
        "import_path": "serve.app:build",
        "args": arguments,
    }
    return f"# {headline(result)}\n" + yaml.safe_dump({"applications": [application]}, sort_keys=False)


def headline(result: Result) -> str:
    """The outcome in a sentence."""
    found = result.confirmation
    if found is None:
        return f"{result.workload}: nothing feasible was measured."
    chosen = next(outcome for outcome in found.outcomes if outcome.point == found.chosen)
    speedup = chosen.figures["speedup"]
    default = result.default.name
    against = {
        "default": "it is the default",
        "tie": f"no different from the default {default} beyond the noise",
        "better": f"{found.ratio:.2f} times the default {default} ({found.low:.2f} to {found.high:.2f})",
    }[found.over_default]
    return (
        f"{result.workload}: {found.chosen.name}, {chosen.figures['tokens_per_s'].value:.1f} tokens/s, "
        f"{speedup.value:.2f} times plain decoding ({speedup.low:.2f} to {speedup.high:.2f}); {against}."
    )


def note(result: Result, point: Point) -> str:
    """What a point is in the last measurement."""
    found = result.confirmation
    if found is None:
        return ""
    words = ["chosen"] if point == found.chosen else []
    words += ["default"] if point == result.default else []
    return ", ".join(words or ["runner-up"])


def render_page(results: Mapping[str, Result], pipeline: Mapping[str, Any]) -> str:
    """The page of a serving sweep: no script, no request to anywhere."""
    return _render(
        results,
        kicker="serving sweep",
        title="What to serve with, here",
        remarks=(),
        recipes={f"best_{name}.yaml": best_recipe(result, pipeline) for name, result in results.items()},
        slices=plots.slice_panels(results),
        heats=plots.heat_panels(results),
        rungs=[],
    )


def render_training_page(result: Result, recipe: str | None, budget_s: float) -> str:
    """The page of a training sweep."""
    trained_s, whole_s = trained_cpu_s(result), budget_s * len(result.trials)
    results = {"training": result}
    return _render(
        results,
        kicker="training sweep",
        title="How to train, here",
        remarks=(
            f"{len(result.trials)} trials were trained for {trained_s:.0f} CPU seconds, "
            f"{trained_s / whole_s:.0%} of the {whole_s:.0f} that all would have taken to their ends.",
        ),
        recipes={"best_training.yaml": recipe},
        slices=plots.parameter_panels(result),
        heats=[],
        rungs=plots.rung_panels(result),
    )


def _render(results: Mapping[str, Result], **more: Any) -> str:
    environment = Environment(
        loader=FileSystemLoader([Path(__file__).parent, Path(html.__file__).parent]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        decimals=html.decimals, figure=html.figure, words=html.words, percent=html.percent
    )
    names = plots.labels(results)
    regimes = {name: result.regime.model_dump(mode="json") for name, result in results.items()}
    return environment.get_template(TEMPLATE).render(
        results=results,
        headline=headline,
        note=note,
        legend=[(label, html.plots.legend_mark(place)) for place, label in enumerate(names)],
        colours=plots.SERIES,
        histories=plots.history_panels(results),
        importances=plots.importance_panels(results),
        fronts=plots.front_panels(results),
        regimes={name: html.flatten(regime) for name, regime in regimes.items()},
        definitions=DEFINITIONS,
        **more,
    )

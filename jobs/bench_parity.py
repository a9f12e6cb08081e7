"""Bench: does a drafter accept as much in vLLM or SGLang as in our engine, and in ours as in replay?

`python -m jobs.bench_parity -r configs/parity.yaml` trains the drafters of the recipe where that is not
done yet, serves each exported folder in the other engine if that can run it, and writes
`runs/bench/parity.json` (`parity_sglang.json` for SGLang).
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from eagleray.engines.config import ServedEngineConfig
from eagleray.engines.native.config import NativeEngineConfig
from eagleray.engines.sglang.config import SglangConfig
from eagleray.engines.vllm.config import VllmConfig
from eagleray.recipe.loading import load_recipe
from jobs import console
from jobs.options import OverridesArgument, RecipeOption
from jobs.runner import run_recipe

if TYPE_CHECKING:
    from eagleray.cluster.context import RunContext
    from eagleray.engines.base import GenerationRequest
    from eagleray.evaluation.parity import PromptParity
    from jobs.bench import Figure

THREADS = 1

EngineName = Literal["vllm", "sglang"]
EngineOption = Annotated[EngineName, typer.Option(help="The other engine. SGLang needs a GPU.")]
EnvironmentOption = Annotated[
    Path | None,
    typer.Option(
        help="Environment that holds the other engine. Default: VLLM_ENV or .venv-vllm, which "
        "`make engine-vllm` makes, or SGLANG_ENV or .venv-sglang.",
        show_default=False,
    ),
]
DepthOption = Annotated[int, typer.Option(help="Tokens drafted per cycle.", min=1)]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    recipe: RecipeOption,
    overrides: OverridesArgument = None,
    engine: EngineOption = "vllm",
    environment: EnvironmentOption = None,
    depth: DepthOption = 5,
) -> None:
    """Compare replay, native and another engine on the held-out prompts of a recipe, at the same draft depth.

    Drafters that the other engine does not serve are compared in replay and the native engine.
    """
    run_recipe(recipe, overrides, None, ("distil", "train_"))
    place = environment or Path(os.environ.get(f"{engine.upper()}_ENV", f".venv-{engine}"))
    console.run(lambda _, out: _measure(recipe, overrides or (), engine, place, depth, out))


def _measure(
    path: Path, overrides: Sequence[str], engine: EngineName, environment: Path, depth: int, out: Console
) -> None:
    # Imported late: a wrong recipe must cost a second, not the import of torch.
    from eagleray.cluster.context import open_run
    from jobs.bench import write_bench

    run = open_run(load_recipe(path, overrides), lambda _: None)
    native = NativeEngineConfig(threads=THREADS, batch_invariant=True)
    dtype = run.recipe.target.dtype
    other: ServedEngineConfig = (
        VllmConfig(environment=environment, dtype=dtype, threads=THREADS)
        if engine == "vllm"
        else SglangConfig(environment=environment, dtype=dtype)
    )
    figures: dict[str, Figure] = {}
    for label in run.recipe.drafters:
        out.print(f"[parity] {label}, at most {depth} deep", markup=False)
        figures |= parity_figures(label, engine, _compare(run, label, native, engine, other, depth))
    for name, figure in figures.items():
        out.print(f"{name:<36} {figure.value:.4f}  {figure.low:.4f} to {figure.high:.4f}  n={figure.n}")
    regime = {
        "recipe": run.recipe.model_dump(mode="json"),
        "depth": depth,
        "native": native.model_dump(mode="json"),
        engine: other.model_dump(mode="json"),
    }
    name = "parity" if engine == "vllm" else f"parity_{engine}"
    out.print(f"wrote {write_bench(name, figures, regime)}")


def _compare(
    run: "RunContext",
    label: str,
    native: NativeEngineConfig,
    name: EngineName,
    other: ServedEngineConfig,
    depth: int,
) -> "list[PromptParity]":
    from eagleray.drafters.folder import load_drafter, read_profile
    from eagleray.engines.base import DraftSetting
    from eagleray.engines.catalog import build_engine, served_algorithms, start_server
    from eagleray.engines.served import ServedDrafter, why_not_served
    from eagleray.evaluation.parity import compare

    engine = build_engine(native, run.target_folder, run.recipe.target.dtype)
    folder = run.folder.drafter(label)
    source = load_drafter(folder, engine.decoder.heads)
    draft = DraftSetting(source=source, depth=min(depth, source.max_depth or depth))
    if why_not_served(read_profile(folder), name, served_algorithms(other)) is not None:
        return compare(engine, None, draft, _requests(run))
    drafter = ServedDrafter(folder=folder, depth=draft.depth)
    log = run.folder.path / name / f"{label}.log"
    with start_server(other, run.target_folder, drafter, log) as server:
        return compare(engine, server, draft, _requests(run))


def _requests(run: "RunContext") -> "list[GenerationRequest]":
    from eagleray.corpus.chat import ChatTemplate, render_prompts
    from eagleray.engines.base import GenerationRequest
    from eagleray.targets.loading import load_tokenizer

    chat = ChatTemplate(load_tokenizer(run.target_folder), run.recipe.prompts.template_arguments)
    return [
        GenerationRequest(
            request_id=rendered.prompt.prompt_id,
            prompt_ids=rendered.prompt_ids,
            max_new_tokens=run.recipe.evaluation.max_new_tokens,
        )
        for rendered in render_prompts(chat, run.held_out_prompts)[0]
    ]


def parity_figures(label: str, engine: str, prompts: "Sequence[PromptParity]") -> "dict[str, Figure]":
    """The figures of one drafter, with intervals over prompts."""
    from eagleray.evaluation.parity import delivered_and_cycles, tau_ratio_of_sums
    from jobs.bench import bootstrap_figure, ratio_figure

    native = [delivered_and_cycles(prompt.native) for prompt in prompts]
    measures = {"replay_vs_native_tau_ratio": [prompt.replayed for prompt in prompts]}
    served = [prompt.served for prompt in prompts if prompt.served is not None]
    if served:
        measures[f"{engine}_vs_native_tau_ratio"] = served
    ratios = {
        name: bootstrap_figure(
            [(*delivered_and_cycles(cycles), *own) for cycles, own in zip(other, native, strict=True)],
            tau_ratio_of_sums,
            "ratio",
        )
        for name, other in measures.items()
    }
    shares = {
        "greedy_exact_ratio": [prompt.same_ids for prompt in prompts],
        "replay_same_cycles_ratio": [prompt.replayed == prompt.native for prompt in prompts],
    }
    figures = {
        "native_tau": ratio_figure(native, "tokens per verification"),
        **ratios,
        **{name: ratio_figure([(held, 1) for held in rows], "ratio") for name, rows in shares.items()},
    }
    return {f"{label}.{name}": figure for name, figure in figures.items()}


if __name__ == "__main__":
    app()

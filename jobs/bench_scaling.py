"""Bench: training with each backend, feature mode and number of workers, and what Ray Train costs.

`python -m jobs.bench_scaling`. Trainings through Ray are timed by their own logs, checkpoints and trials left
out; a bare loop over the same steps runs in turn with them. Measured parts are kept beside the bench file, so
a bench that was stopped goes on.
"""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from eagleray.monitoring.progress import ProgressListener, ProgressMeter
from eagleray.recipe.loading import load_recipe
from jobs import console
from jobs.bench import BENCH_FOLDER, Figure, Parts, ratio_figure, write_bench

if TYPE_CHECKING:
    from eagleray.cluster.context import RunContext
    from eagleray.cluster.train_work import TrainWork
    from eagleray.training.config import TrainingConfig

FOLDER = BENCH_FOLDER / "scaling"
RECIPE = Path("configs/demo.yaml")
LABEL = "eagle3"
BACKENDS = ("ddp", "fsdp", "deepspeed")
MODES = ("stored", "colocated", "streamed")
RANKS = (1, 2)
UNCOUNTED_STEPS = 8
"""The first steps allocate, and fill the memory that features are kept in."""
BLOCK_STEPS = 8
"""Steps that are drawn together for an interval: neighbours have as long sequences and as busy a machine."""
NEVER = 1_000_000
SETTINGS = (
    "prompts.train=[{kind: family, name: code, count: 40, seed: 1}, "
    "{kind: family, name: arithmetic, count: 40, seed: 1}]",
    "prompts.held_out=[{kind: family, name: code, count: 2, seed: 2}]",
    "distil.max_new_tokens=64",
    "distil.rows_per_shard=8",
    "run.name=scaling",
)

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    rounds: Annotated[int, typer.Option(help="Turns of Ray Train and the bare loop.")] = 3,
    steps: Annotated[int, typer.Option(help="Counted steps of a turn.")] = 80,
    variant_steps: Annotated[int, typer.Option(help="Counted steps of a backend and feature mode.")] = 24,
    variant: Annotated[
        list[str] | None,
        typer.Option(help="Only these, such as fsdp.streamed; several are allowed.", show_default=False),
    ] = None,
    folder: Annotated[Path, typer.Option(help="Where parts and runs are kept.")] = FOLDER,
) -> None:
    """Measure all parts and write runs/bench/scaling.json."""
    console.run(lambda listener, out: _bench(rounds, steps, variant_steps, variant, folder, listener, out))


def _bench(
    rounds: int,
    steps: int,
    variant_steps: int,
    chosen: Sequence[str] | None,
    folder: Path,
    listener: ProgressListener,
    out: Console,
) -> None:
    recipe = load_recipe(RECIPE, (*SETTINGS, f"run.root={folder.resolve()}"))
    from eagleray.cluster.context import open_run
    from eagleray.cluster.pipeline import plan_stages, run_stages
    from eagleray.cluster.session import ray_session

    run = open_run(recipe, listener)
    variants = [
        (backend, mode, ranks)
        for backend, mode, ranks in product(BACKENDS, MODES, RANKS)
        if not chosen or f"{backend}.{mode}" in chosen
    ]
    # A training in mode `streamed` holds a core more than it has ranks.
    with ray_session(max(RANKS) + 1):
        run_stages(run, plan_stages(run)[:1])
        meter = ProgressMeter("scaling bench", 2 * rounds + len(variants), "parts", listener)
        parts = Parts(folder / "parts", meter)
        turns = [
            (
                parts.measured(f"ray-{turn}-{steps}", partial(_by_ray, run, f"ray-{turn}", steps)),
                parts.measured(f"bare-{turn}-{steps}", partial(_bare, run, f"bare-{turn}", steps)),
            )
            for turn in range(rounds)
        ]
        measured = {
            variant: parts.measured(
                f"{part_name(*variant)}-{variant_steps}",
                partial(_by_ray, run, part_name(*variant), variant_steps, **_settings(*variant)),
            )
            for variant in variants
        }
    figures = _against_bare(turns) | {
        _name(*variant): ratio_figure([[block["tokens"], block["wall_s"]] for block in blocks], "tokens/s")
        for variant, blocks in measured.items()
    }
    regime = {"recipe": recipe.model_dump(mode="json"), "rounds": rounds, "steps": steps}
    path = write_bench("scaling", figures, regime)
    for name, figure in figures.items():
        out.print(f"{name} {figure.value:.4g} ({figure.low:.4g} to {figure.high:.4g}) {figure.unit}")
    out.print(f"figures {path}", markup=False)


def part_name(backend: str, mode: str, ranks: int) -> str:
    """Of a variant's part and training."""
    return f"{backend}-{mode}-{ranks}"


def _name(backend: str, mode: str, ranks: int) -> str:
    return f"{backend}.{mode}.{'tokens_per_s' if ranks > 1 else 'one_worker_tokens_per_s'}"


def _settings(backend: str, mode: str, ranks: int) -> dict[str, Any]:
    """AdamW throughout, so that backends can be compared: ZeRO knows no other."""
    return {
        "backend": backend,
        "features": mode,
        "workers": ranks,
        "optimizer": "adamw",
        "learning_rate": 1e-3,
    }


def _by_ray(run: "RunContext", name: str, steps: int, **settings: Any) -> list[dict[str, float]]:
    """Train through Ray as a run does, watchdog included; returns blocks of counted steps."""
    import shutil

    from eagleray.cluster.attempts import run_attempts
    from eagleray.cluster.machines import RayMachines
    from eagleray.cluster.train import fit, has_gpus
    from eagleray.training.metrics_log import MetricsLog

    work = _work(run, name, steps, settings)
    shutil.rmtree(work.run, ignore_errors=True)
    run_attempts(
        lambda training, heartbeats: fit(work, training, heartbeats, name, gpus=has_gpus(training)),
        work.training,
        work.run,
        work.run / "incidents",
        name,
        RayMachines(work.training, name, gpus=has_gpus(work.training)),
    )
    log = MetricsLog(work.run / "metrics.jsonl").read()
    rows = [
        {
            "tokens": after["supervised_tokens"] - before["supervised_tokens"],
            "wall_s": after["wall_s"],
            "forward_backward_s": after["forward_s"] + after["backward_s"] + after.get("target_s", 0.0),
            "optimizer_s": after["optimizer_s"],
        }
        for before, after in pairwise(log)
    ]
    return in_blocks(rows[UNCOUNTED_STEPS - 1 :])


def _bare(run: "RunContext", name: str, steps: int) -> list[dict[str, float]]:
    from jobs.bench_scaling_bare import train_bare

    work = _work(run, name, steps, {})
    seconds = train_bare(work, UNCOUNTED_STEPS + steps, work.run)
    return in_blocks([{"wall_s": step_s} for step_s in seconds[UNCOUNTED_STEPS:]])


def _work(run: "RunContext", name: str, steps: int, settings: dict[str, Any]) -> "TrainWork":
    """The training of the recipe, for some steps without checkpoints and trials between them."""
    from eagleray.cluster.train import training_work

    work = training_work(run, LABEL)
    changed = {
        "epochs": NEVER,
        "max_steps": UNCOUNTED_STEPS + steps,
        "checkpoint_every_steps": NEVER,
        "replay_samples": 0,
        **settings,
    }
    training: TrainingConfig = type(work.training).model_validate(work.training.model_dump() | changed)
    place = run.folder.path / "trainings" / name
    return work.model_copy(update={"training": training, "run": place, "export": place / "drafter"})


def in_blocks(rows: Sequence[dict[str, float]]) -> list[dict[str, float]]:
    """Sums over neighbouring steps; a last block that is not full is left out."""
    whole = len(rows) // BLOCK_STEPS * BLOCK_STEPS
    return [
        {name: sum(row[name] for row in rows[start : start + BLOCK_STEPS]) for name in rows[0]}
        for start in range(0, whole, BLOCK_STEPS)
    ]


def _against_bare(turns: Sequence[tuple[Any, Any]]) -> dict[str, Figure]:
    """The same steps of both, block by block: seconds of the bare loop over those of Ray Train.

    And of Ray Train's, what is neither forward, backward nor update (waiting, data, telling), and what is
    not forward or backward.
    """
    pairs = [(ours, bare) for by_ray, alone in turns for ours, bare in zip(by_ray, alone, strict=True)]
    return {
        "ray_overhead_ratio": ratio_figure(
            [[bare["wall_s"], ours["wall_s"]] for ours, bare in pairs], "ratio"
        ),
        "non_compute_share_ratio": ratio_figure(
            [
                [ours["wall_s"] - ours["forward_backward_s"] - ours["optimizer_s"], ours["wall_s"]]
                for ours, _ in pairs
            ],
            "ratio",
        ),
        "not_forward_backward_share_ratio": ratio_figure(
            [[ours["wall_s"] - ours["forward_backward_s"], ours["wall_s"]] for ours, _ in pairs], "ratio"
        ),
    }


if __name__ == "__main__":
    app()

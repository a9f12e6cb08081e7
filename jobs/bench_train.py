"""Bench: acceptance length that a budget of CPU time buys, for every drafter, on answers given as ids.

`python -m jobs.bench_train answers.jsonl`. Each line of the file is one greedy answer of the target:
`{id, family, split, prompt_ids, answer_ids}` with split `train` or `test`. Each run has a process of
its own and one thread; finished runs are kept beside the bench file, so a bench that was stopped goes on.
"""

import json
import multiprocessing
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from pydantic import Field
from rich.console import Console
from rich.table import Table

from eagleray.corpus.sample import Sample
from eagleray.errors import DataError
from eagleray.files import write_atomically, write_json_atomically
from eagleray.monitoring.progress import ProgressListener, ProgressMeter
from eagleray.recipe.sections import DrafterSection
from eagleray.settings import Settings, fingerprint, read_yaml, validate
from eagleray.targets.config import TargetConfig
from jobs import console
from jobs.bench import BENCH_FOLDER, Figure, exact, ratio_figure, write_bench

if TYPE_CHECKING:
    from eagleray.targets.decoder import TargetDecoder
    from eagleray.training.features import Captured

DECODE_LIMIT_TOKENS = 96
"""The limit under which the answers were emitted."""


class TrainBench(Settings):
    """What is compared."""

    kind: Literal["bench_train"]
    name: str = Field(default="train", pattern=r"^[a-z0-9_]+$")
    """Of the bench file, `runs/bench/<name>.json`."""
    target: TargetConfig
    budgets_s: tuple[float, ...] = Field(min_length=1)
    """CPU seconds of training; each is a run of its own with a whole schedule."""
    depth: int = Field(ge=1)
    """Draft depth at which replay tau is computed."""
    drafters: dict[str, DrafterSection]


class Run(Settings):
    """One drafter on one budget."""

    label: str
    section: DrafterSection
    target: TargetConfig
    answers: Path
    answers_hash: str
    budget_s: float
    depth: int


class Outcome(Settings):
    """What one run reached."""

    rows_by_family: dict[str, list[tuple[int, int]]]
    """Per held-out answer: tokens delivered, verifications."""
    passes: float
    steps: int
    supervised_tokens_per_cpu_s: float
    peak_rss_bytes: int
    num_parameters: int
    draft_rows: list[tuple[float, float]]
    """Per timed prompt: seconds of one draft, seconds of one plain target step."""


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    answers: Annotated[Path, typer.Argument(help="JSON Lines of emitted answers.", show_default=False)],
    recipe: Annotated[Path, typer.Option("--recipe", "-r", help="What is compared.")] = Path(
        "configs/bench/train.yaml"
    ),
    drafter: Annotated[
        list[str] | None,
        typer.Option(help="Only these labels of the recipe; several are allowed.", show_default=False),
    ] = None,
    budget: Annotated[
        list[float] | None,
        typer.Option(help="Only these budgets, in CPU seconds.", show_default=False),
    ] = None,
    workers: Annotated[int, typer.Option(help="Runs at once; more than cores would falsify them.")] = 1,
) -> None:
    """Train every drafter on every budget and write runs/bench/train.json, or what the recipe names."""
    console.run(lambda listener, out: _bench(answers, recipe, drafter, budget, workers, listener, out))


def _bench(
    answers: Path,
    recipe: Path,
    labels: list[str] | None,
    budgets_s: list[float] | None,
    workers: int,
    listener: ProgressListener,
    out: Console,
) -> None:
    bench = validate(TrainBench, read_yaml(recipe), f"Recipe {recipe}")
    runs = [
        Run(
            label=label,
            section=section,
            target=bench.target,
            answers=answers.resolve(),
            answers_hash=fingerprint(_read_text(answers)),
            budget_s=budget_s,
            depth=bench.depth,
        )
        for label, section in bench.drafters.items()
        for budget_s in bench.budgets_s
        if label in (labels or bench.drafters) and budget_s in (budgets_s or bench.budgets_s)
    ]
    outcomes = _run_all(runs, workers, listener)
    figures = {name: figure for run, found in outcomes for name, figure in _figures(run, found).items()}
    path = write_bench(bench.name, figures, {"recipe": bench.model_dump(mode="json"), "threads": 1})
    _show(outcomes, out)
    out.print(f"figures {path}", markup=False)


def _run_all(runs: Sequence[Run], workers: int, listener: ProgressListener) -> list[tuple[Run, Outcome]]:
    """Do the runs that no earlier start has finished, the dearest first."""
    meter = ProgressMeter("train bench", len(runs), "runs", listener)
    waiting = [run for run in runs if not _kept(run).exists()]
    meter.advance(len(runs) - len(waiting), "finished earlier")
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, max_tasks_per_child=1) as pool:
        running = {pool.submit(measure, run): run for run in sorted(waiting, key=lambda r: -r.budget_s)}
        for done in as_completed(running):
            run = running[done]
            write_json_atomically(_kept(run), done.result().model_dump(mode="json"))
            meter.advance(1, f"{run.label} {run.budget_s:g} s")
    return [(run, Outcome.model_validate_json(_kept(run).read_text(encoding="utf-8"))) for run in runs]


def measure(run: Run) -> Outcome:
    """Train, replay the held-out answers, and time drafts. Runs in a process of its own."""
    import torch

    from eagleray.drafters.catalog import build_trainable_drafter
    from eagleray.drafters.replay import EmittedAnswer, replay
    from eagleray.monitoring.memory import peak_rss_bytes
    from eagleray.targets.decoder import TargetDecoder
    from eagleray.targets.loading import resolve_target
    from eagleray.training.budget import train_on_budget
    from eagleray.training.features import MemoryFeatures
    from eagleray.training.vocabulary import supervised_counts

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    decoder = TargetDecoder.load(resolve_target(run.target), getattr(torch, run.target.dtype))
    training, held_out = read_answers(run.answers)
    layers = run.section.drafter.tapped_layers(decoder.geometry.num_layers)
    source = MemoryFeatures(_captured(run, decoder, layers, [*training, *held_out]))
    torch.manual_seed(run.section.training.seed)
    counts_V = supervised_counts(training, decoder.geometry.vocab_size)
    drafter = build_trainable_drafter(run.section.drafter, decoder.heads, counts_V)
    bought = train_on_budget(drafter, training, source, run.section.training, run.budget_s)
    peak = peak_rss_bytes()
    emitted = [
        EmittedAnswer(
            ids_T=torch.tensor(sample.input_ids),
            prompt_tokens=sample.prompt_tokens,
            features_TLD=source.of(sample)[0],
            final_TD=source.of(sample)[1],
            max_answer_tokens=DECODE_LIMIT_TOKENS,
        )
        for sample in held_out
    ]
    rows: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for sample, cycles in zip(held_out, replay(drafter, emitted, run.depth), strict=True):
        rows[sample.category].append((sum(cycle.delivered for cycle in cycles), len(cycles)))
    return Outcome(
        rows_by_family=rows,
        passes=bought.passes,
        steps=bought.steps,
        supervised_tokens_per_cpu_s=bought.supervised_tokens / bought.cpu_s,
        peak_rss_bytes=peak,
        num_parameters=drafter.num_parameters(),
        draft_rows=_time_drafts(decoder, drafter, held_out, run.depth),
    )


def _captured(
    run: Run, decoder: "TargetDecoder", layers: tuple[int, ...], samples: Sequence[Sample]
) -> "Captured":
    """What the target's layers say of the answers; the first run that asks computes it for all."""
    import torch

    from eagleray.training.features import capture_all

    asked = fingerprint([run.target.model_dump(mode="json"), run.answers_hash, layers])
    path = BENCH_FOLDER / "train" / f"features-{asked}.pt"
    if not path.exists():
        captured = capture_all(decoder, layers, samples)
        write_atomically(path, lambda aside: torch.save(captured, aside))
    kept: Captured = torch.load(path, mmap=True)
    return kept


def _time_drafts(
    decoder: Any, drafter: Any, held_out: Sequence[Sample], depth: int
) -> list[tuple[float, float]]:
    """Seconds of drafting per cycle and of a plain target step, prompt by prompt, one after the other."""
    from eagleray.engines.base import DraftSetting, GenerationRequest
    from eagleray.engines.native.config import NativeEngineConfig
    from eagleray.engines.native.engine import NativeEngine

    engine = NativeEngine(decoder, NativeEngineConfig(threads=1))
    rows = []
    for sample in [s for s in held_out if s.category == "code"][:6]:
        request = GenerationRequest(
            request_id=sample.sample_id,
            prompt_ids=sample.input_ids[: sample.prompt_tokens],
            max_new_tokens=32,
        )
        plain = engine.generate([request])
        drafted = engine.generate([request], draft=DraftSetting(source=drafter, depth=depth))
        rows.append(
            (
                drafted.times.draft_s / len(drafted.generations[0].cycles),
                plain.times.verify_s / len(plain.generations[0].cycles),
            )
        )
    return rows


def read_answers(path: Path) -> tuple[list[Sample], list[Sample]]:
    """Training and held-out answers of a file.

    Raises:
        DataError: It is missing, a line lacks a field, or a split is empty.
    """
    samples: dict[str, list[Sample]] = {"train": [], "test": []}
    for number, line in enumerate(_read_text(path).splitlines(), start=1):
        try:
            row = json.loads(line)
            samples[row["split"]].append(_to_sample(row))
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{path}:{number} is not an emitted answer ({type(error).__name__}: {error}); expected an "
                "object with id, family, split (train or test), prompt_ids and answer_ids."
            ) from None
    if not all(samples.values()):
        sizes = ", ".join(f"{len(rows)} {split}" for split, rows in samples.items())
        raise DataError(f"{path} holds {sizes} answers; expected some of both splits.")
    return samples["train"], samples["test"]


def _to_sample(row: dict[str, Any]) -> Sample:
    prompt, answer = tuple(row["prompt_ids"]), tuple(row["answer_ids"])
    return Sample(
        sample_id=str(row["id"]),
        input_ids=prompt + answer,
        supervised=((len(prompt), len(prompt) + len(answer)),),
        prompt_tokens=len(prompt),
        answer_tokens=len(answer),
        finish_reason="length" if len(answer) == DECODE_LIMIT_TOKENS else "stop",
        answer_origin="target",
        category=row["family"],
        source="answers",
    )


def _figures(run: Run, found: Outcome) -> dict[str, Figure]:
    at = f"{run.budget_s:g}s"
    figures = {
        f"{run.label}.{family}.tau_at_{at}": ratio_figure(rows, "tokens")
        for family, rows in found.rows_by_family.items()
    }
    return figures | {
        f"{run.label}.passes_at_{at}": exact(found.passes, "passes"),
        f"{run.label}.supervised_tokens_per_cpu_s": exact(found.supervised_tokens_per_cpu_s, "tokens/s"),
        f"{run.label}.peak_rss_bytes": exact(found.peak_rss_bytes, "bytes"),
        f"{run.label}.num_parameters": exact(found.num_parameters, "parameters"),
        f"{run.label}.draft_cost_ratio": ratio_figure(found.draft_rows, "ratio"),
    }


def _show(outcomes: Iterable[tuple[Run, Outcome]], out: Console) -> None:
    table = Table("drafter", "CPU s", "passes", "tokens/CPU s", "tau by family", "draft cost")
    for run, found in outcomes:
        taus = (
            f"{family} {sum(d for d, _ in rows) / sum(c for _, c in rows):.2f}"
            for family, rows in sorted(found.rows_by_family.items())
        )
        cost = sum(d for d, _ in found.draft_rows) / sum(t for _, t in found.draft_rows)
        table.add_row(
            run.label,
            f"{run.budget_s:g}",
            f"{found.passes:.1f}",
            f"{found.supervised_tokens_per_cpu_s:.0f}",
            ", ".join(taus),
            f"{cost:.2f}",
        )
    out.print(table)


def _kept(run: Run) -> Path:
    return BENCH_FOLDER / "train" / f"{run.label}-{run.budget_s:g}s-{fingerprint(run)}.json"


def _read_text(path: Path) -> str:
    if not path.is_file():
        raise DataError(f"There is no file {path}. Give JSON Lines of emitted answers; see --help.")
    return path.read_text(encoding="utf-8")


if __name__ == "__main__":
    app()

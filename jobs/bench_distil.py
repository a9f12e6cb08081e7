"""Bench: what the distil pipeline costs over its engine, and whether its memory stays flat.

Rounds of three processes, one after the other and each with one thread: the distil job, a bare loop over
the same engine, and Hugging Face `generate` in padded batches in the order of arrival. All answer the same
prompts and are timed with what it takes to load the target. Then masks are built for given answers, and the
job runs with stored answers, so that the data plane alone works, on few rows and on many.
"""

import json
import multiprocessing
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console

from eagleray.corpus.prompt import Prompt
from eagleray.errors import ClusterError
from eagleray.files import write_text_atomically
from eagleray.monitoring.progress import ProgressListener, ProgressMeter
from eagleray.settings import Settings
from jobs import console
from jobs.bench import BENCH_FOLDER, Figure, Parts, exact, ratio_figure, write_bench

WORK = BENCH_FOLDER / "distil"
NEW_TOKENS = 96
HF_BATCH = 16
ENCODED_ROWS = 4000

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class Sizes(Settings):
    """How much is measured."""

    prompts: int
    rounds: int
    few_rows: int
    many_rows: int


@app.command()
def main(
    prompts: Annotated[int, typer.Option(help="Prompts per round, of mixed length.", min=60)] = 160,
    rounds: Annotated[int, typer.Option(help="Rounds of the three ways to answer.", min=1)] = 3,
    few_rows: Annotated[int, typer.Option(help="Rows that memory is compared with.", min=100)] = 10_000,
    many_rows: Annotated[
        int, typer.Option(help="Rows for which memory should be the same.", min=100)
    ] = 1_000_000,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Measure anew what an earlier start finished.")
    ] = False,
) -> None:
    """Measure distillation and write runs/bench/distil.json. Uses local processes on this machine.

    Finished parts are kept, so a bench that was stopped goes on.
    """
    if fresh:
        shutil.rmtree(WORK, ignore_errors=True)
    sizes = Sizes(prompts=prompts, rounds=rounds, few_rows=few_rows, many_rows=many_rows)
    console.run(lambda listener, out: _bench(sizes, listener, out))


def _bench(sizes: Sizes, listener: ProgressListener, out: Console) -> None:
    parts = Parts(WORK / "parts", ProgressMeter("distil bench", 3 * sizes.rounds + 3, "parts", listener))
    recipe = _speed_recipe(sizes.prompts)
    figures = _speed_figures(sizes.rounds, recipe, parts)
    table = WORK / "round0" / "prompts" / "train.jsonl"
    rows, seconds = parts.measured("encode", lambda: (ENCODED_ROWS, _alone(encode_given_answers, table)))
    figures["encode_rows_per_s"] = exact(rows / seconds, "rows/s", ENCODED_ROWS)
    peaks = []
    for count in (sizes.few_rows, sizes.many_rows):
        peak_bytes, seconds = parts.measured(f"replay{count}", partial(_replayed, count))
        peaks.append(peak_bytes)
        figures[f"rss_at_{count}_rows_bytes"] = exact(peak_bytes, "bytes", count)
        figures[f"replayed_rows_per_s_at_{count}"] = exact(count / seconds, "rows/s", count)
    figures["rss_1m_vs_10k_ratio"] = exact(peaks[1] / peaks[0], "ratio", sizes.many_rows)
    regime = {"recipe": recipe, "hf_batch": HF_BATCH, "threads": 1, "sizes": sizes.model_dump()}
    path = write_bench("distil", figures, regime)
    for name, figure in figures.items():
        interval = f"({figure.low:.4g} to {figure.high:.4g})"
        out.print(f"{name}: {figure.value:.4g} {interval} {figure.unit}", markup=False)
    out.print(f"figures {path}", markup=False)


def _speed_figures(rounds: int, recipe: dict[str, Any], parts: Parts) -> dict[str, Figure]:
    rates: dict[str, list[tuple[float, float]]] = {"pipeline": [], "engine": [], "hf_generate": []}
    for number in range(rounds):
        name = f"round{number}"
        table = WORK / name / "prompts" / "train.jsonl"
        ways: dict[str, Callable[[], tuple[float, float]]] = {
            "pipeline": partial(_distil, recipe, name),
            "engine": partial(_timed, answer_with_engine, table),
            "hf_generate": partial(_timed, answer_with_hf, table),
        }
        for way, answer in ways.items():
            rates[way].append(parts.measured(f"{name}-{way}", answer))
    figures = {f"{way}_tokens_per_s": ratio_figure(rows, "tokens/s") for way, rows in rates.items()}
    for name, other in (("pipeline_vs_engine_ratio", "engine"), ("vs_hf_generate_ratio", "hf_generate")):
        pairs = zip(rates["pipeline"], rates[other], strict=True)
        figures[name] = ratio_figure(
            [(own / own_s, its / its_s) for (own, own_s), (its, its_s) in pairs], "ratio"
        )
    return figures


def _speed_recipe(prompts: int) -> dict[str, Any]:
    """The demo's distil stage, one worker, on prompts of mixed length."""
    third = prompts // 4
    return _recipe(
        {
            "train": [
                {"kind": "family", "name": "code", "count": third, "seed": 1},
                {
                    "kind": "mt_bench",
                    "count": 40,
                    "categories": ["writing", "reasoning", "extraction", "stem"],
                },
                {"kind": "family", "name": "arithmetic", "count": prompts - third - 40, "seed": 1},
            ]
        },
        {"max_new_tokens": NEW_TOKENS, "rows_per_shard": 32, "workers": 1, "capture_features": False},
    )


def _recipe(prompts: dict[str, Any], distil: dict[str, Any]) -> dict[str, Any]:
    demo = yaml.safe_load(Path("configs/demo.yaml").read_text(encoding="utf-8"))
    held_out = [{"kind": "family", "name": "code", "count": 4, "seed": 99}]
    drafter = demo["drafters"]["eagle3"]
    drafter["training"] |= {"features": "colocated", "max_length": 1024}
    return demo | {
        "prompts": {"held_out": held_out, **prompts},
        "distil": distil,
        "drafters": {"eagle3": drafter},
        "baselines": {},
    }


def _distil(recipe: dict[str, Any], name: str) -> tuple[float, float]:
    """Run the distil job; returns answer tokens and the seconds of its stage."""
    path = WORK / f"{name}.yaml"
    recipe = recipe | {"run": {"name": name, "root": str(WORK.resolve())}}
    write_text_atomically(path, yaml.safe_dump(recipe, sort_keys=False))
    done = subprocess.run(
        [sys.executable, "-m", "jobs.distil", "--recipe", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ClusterError(f"The distil job of {path} ended with {done.returncode}: {done.stderr[-2000:]}")
    facts = _facts(name)
    return facts["dataset"]["supervised_tokens"], facts["wall_s"]


def _facts(name: str) -> dict[str, Any]:
    record = json.loads((WORK / name / "stages" / "distil.json").read_text(encoding="utf-8"))
    return {**record["facts"], "wall_s": record["wall_s"]}


def _alone(work: Callable[[Path], float], path: Path) -> float:
    """Run in a fresh process, so that nothing is warm."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, path).result()


def _timed(work: Callable[[Path], float], path: Path) -> tuple[float, float]:
    began_s = time.perf_counter()
    return _alone(work, path), time.perf_counter() - began_s


def answer_with_engine(table: Path) -> int:
    """The bare loop: render, generate. Returns answer tokens."""
    import torch

    from eagleray.engines.base import GenerationRequest
    from eagleray.engines.catalog import build_engine
    from eagleray.engines.native.config import NativeEngineConfig
    from eagleray.targets.config import TargetConfig
    from eagleray.targets.loading import resolve_target

    torch.set_num_threads(1)
    folder = resolve_target(TargetConfig())
    engine = build_engine(NativeEngineConfig(max_batch_size=32, threads=1), folder, "float32")
    requests = [
        GenerationRequest(request_id=str(number), prompt_ids=ids, max_new_tokens=NEW_TOKENS)
        for number, ids in enumerate(_rendered(table, folder))
    ]
    return sum(len(answer.answer_ids) for answer in engine.generate(requests).generations)


def answer_with_hf(table: Path) -> int:
    """Hugging Face `generate`: padded batches in the order of arrival. Returns answer tokens."""
    import torch
    from transformers import AutoModelForCausalLM

    from eagleray.targets.config import TargetConfig
    from eagleray.targets.loading import resolve_target

    torch.set_num_threads(1)
    folder = resolve_target(TargetConfig())
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    prompts, tokens = list(_rendered(table, folder)), 0
    end_ids = model.generation_config.eos_token_id
    ends = torch.tensor(end_ids if isinstance(end_ids, list) else [end_ids])
    for start in range(0, len(prompts), HF_BATCH):
        batch = prompts[start : start + HF_BATCH]
        longest = max(map(len, batch))
        ids_BT = torch.tensor([[0] * (longest - len(ids)) + list(ids) for ids in batch])
        mask_BT = torch.tensor([[0] * (longest - len(ids)) + [1] * len(ids) for ids in batch])
        with torch.inference_mode():
            out_BT = model.generate(
                ids_BT, attention_mask=mask_BT, max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0
            )
        ended_BT = torch.isin(out_BT[:, longest:], ends)
        # An answer is as long as its first end token says, or as the batch ran.
        firsts = [row.nonzero() for row in ended_BT]
        tokens += sum(int(first[0]) + 1 if len(first) else ended_BT.shape[1] for first in firsts)
    return tokens


def encode_given_answers(table: Path) -> float:
    """Build ids and masks of `ENCODED_ROWS` rows in one thread; returns seconds."""
    from dataclasses import replace

    from eagleray.corpus.chat import ChatTemplate
    from eagleray.corpus.config import SupervisionConfig
    from eagleray.corpus.prompt import ASSISTANT, Message
    from eagleray.distillation.answers import GivenAnswers
    from eagleray.distillation.plan import ShardJob
    from eagleray.targets.config import TargetConfig
    from eagleray.targets.loading import load_tokenizer, resolve_target

    chat = ChatTemplate(load_tokenizer(resolve_target(TargetConfig())), {})
    given = GivenAnswers(chat, SupervisionConfig(), 2048)
    answer = Message(ASSISTANT, "The answer follows from the numbers given: first add, then divide. " * 4)
    prompts = [replace(prompt, given=(answer,)) for prompt in _prompts(table)]
    rows = [prompts[number % len(prompts)] for number in range(ENCODED_ROWS)]
    began_s = time.perf_counter()
    for _ in given.answer([ShardJob(index=0, prompts=tuple(rows))]):
        pass
    return time.perf_counter() - began_s


def _replayed(rows: int) -> tuple[float, float]:
    """Distil `rows` prompts with stored answers; returns the largest resident set and seconds."""
    name, path = f"replay{rows}", WORK / f"prompts{rows}.jsonl"
    with path.open("w", encoding="utf-8") as stream:
        for number in range(rows):
            stream.write(json.dumps({"prompt": f"Question {number}: what comes after {number * 7}?"}) + "\n")
    recipe = _recipe(
        {"train": [{"kind": "files", "path": str(path.resolve())}]},
        {
            "engine": {
                "name": "replay",
                "source": str((WORK / "round0" / "dataset").resolve()),
                "unknown_prompts": "cycle",
            },
            "max_new_tokens": NEW_TOKENS,
            "rows_per_shard": 1024,
            "workers": 2,
            "capture_features": False,
        },
    )
    _distil(recipe, name)
    facts = _facts(name)
    peak = max(facts["worker_peak_rss_bytes"], facts["driver_peak_rss_bytes"])
    path.unlink()
    shutil.rmtree(WORK / name / "dataset")
    return peak, facts["wall_s"]


def _prompts(table: Path) -> Sequence[Prompt]:
    from eagleray.corpus.prompt_files import read_prompts

    return [row for row in read_prompts(table, "prompts", "unknown") if isinstance(row, Prompt)]


def _rendered(table: Path, folder: Path) -> Iterable[tuple[int, ...]]:
    from eagleray.corpus.chat import ChatTemplate
    from eagleray.targets.loading import load_tokenizer

    chat = ChatTemplate(load_tokenizer(folder), {})
    return [chat.encode(chat.ask(prompt.messages, prompt.tools)) for prompt in _prompts(table)]


if __name__ == "__main__":
    app()

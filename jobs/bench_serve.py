"""Bench: what Ray Serve costs over its engine, and whether hostile requests break the endpoint.

Two processes hold the same engine, one thread each: the replica behind Serve's HTTP, and a bare loop. They
answer the same prompts at the same concurrency in turns, so that each has the machine for itself while it is
timed. Then the endpoint is attacked.
"""

import asyncio
import multiprocessing
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any

import aiohttp
import typer
import yaml
from rich.console import Console

from eagleray.errors import ClusterError
from eagleray.files import write_text_atomically
from eagleray.monitoring.progress import ProgressListener, ProgressMeter
from jobs import console
from jobs.bench import BENCH_FOLDER, Figure, exact, ratio_figure, write_bench
from jobs.hostile import attack, draw_requests

WORK = BENCH_FOLDER / "serve"
CONCURRENCIES = (1, 4, 16)
NEW_TOKENS = 48
FUZZ_CLIENTS = 32
LEAVING = 0.1
"""Share of the hostile clients that leave before they are answered."""
ENGINE = {"name": "native", "max_batch_size": 16, "threads": 1}
START_TIMEOUT_S = 900.0

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

Rate = tuple[float, float]
"""Tokens, and the seconds they took."""


@app.command()
def main(
    rounds: Annotated[int, typer.Option(help="Rounds of both ways at each concurrency.", min=1)] = 5,
    requests: Annotated[int, typer.Option(help="Hostile requests.", min=1)] = 5000,
    port: Annotated[int, typer.Option(help="Port of loopback to serve on.")] = 8765,
) -> None:
    """Measure the endpoint and write runs/bench/serve.json. Uses local processes on this machine."""
    console.run(lambda listener, out: _bench(rounds, requests, port, listener, out))


def _bench(rounds: int, requests: int, port: int, listener: ProgressListener, out: Console) -> None:
    prompts = _prompts(2 * max(CONCURRENCIES))
    meter = ProgressMeter("serve bench", len(CONCURRENCIES) * rounds + 1, "parts", listener)
    spawn = multiprocessing.get_context("spawn")
    figures: dict[str, Figure] = {}
    with _served(port) as url, ProcessPoolExecutor(1, mp_context=spawn, initializer=open_engine) as alone:
        for concurrency in CONCURRENCIES:
            rows = _rates(url, alone, prompts[: max(4, 2 * concurrency)], concurrency, rounds, meter)
            figures[f"serve_overhead_ratio_c{concurrency}"] = ratio_figure(rows, "ratio")
            served = [(rate, 1.0) for rate, _ in rows]
            figures[f"served_tokens_per_s_c{concurrency}"] = ratio_figure(served, "tokens/s")
        outcome = asyncio.run(attack(url, draw_requests(requests, first_seed=1), FUZZ_CLIENTS, LEAVING))
        meter.advance(1, f"{outcome.requests} hostile requests")
        # It must still answer.
        asyncio.run(answer_served(url, prompts[:1], 1))
    for name, count in (
        ("fuzz_requests", outcome.requests),
        ("fuzz_unexplained_5xx", outcome.unexplained_5xx),
        ("fuzz_faults", len(outcome.faults)),
    ):
        figures[name] = exact(count, "requests", outcome.requests)
    for fault in outcome.faults[:10]:
        out.print(fault, markup=False)
    regime = {
        "engine": ENGINE,
        "new_tokens": NEW_TOKENS,
        "rounds": rounds,
        "streamed": False,
        "fuzz_clients": FUZZ_CLIENTS,
        "fuzz_leaving_ratio": LEAVING,
        "fuzz_statuses": dict(sorted(outcome.statuses.items())),
    }
    path = write_bench("serve", figures, regime)
    for name, figure in figures.items():
        interval = f"({figure.low:.4g} to {figure.high:.4g})"
        out.print(f"{name}: {figure.value:.4g} {interval} {figure.unit}", markup=False)
    out.print(f"figures {path}", markup=False)


def _rates(
    url: str,
    alone: ProcessPoolExecutor,
    prompts: Sequence[tuple[int, ...]],
    concurrency: int,
    rounds: int,
    meter: ProgressMeter,
) -> list[tuple[float, float]]:
    """Tokens per second through the endpoint and of the bare engine, of every round."""
    rows = []
    for number in range(rounds + 1):
        ways: list[tuple[str, Callable[[], Rate]]] = [
            ("served", lambda: asyncio.run(answer_served(url, prompts, concurrency))),
            ("alone", lambda: alone.submit(answer_in_process, prompts, concurrency).result()),
        ]
        measured = {name: answer() for name, answer in (ways if number % 2 else ways[::-1])}
        rates = {name: tokens / seconds for name, (tokens, seconds) in measured.items()}
        if number > 0:  # the first round warms both up
            rows.append((rates["served"], rates["alone"]))
            meter.advance(
                1, f"{concurrency} at once: {rates['served']:.1f} and {rates['alone']:.1f} tokens/s"
            )
    return rows


@contextmanager
def _served(port: int) -> Iterator[str]:
    """The endpoint as a person starts it: a process of its own."""
    file = {
        "http_options": {"port": port},
        "applications": [
            {"name": "plain", "route_prefix": "/plain", "args": {"engine": ENGINE}},
        ],
    }
    path, log = WORK / "applications.yaml", WORK / "serve.log"
    write_text_atomically(path, yaml.safe_dump(file))
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "jobs.serve", "--config", str(path)],
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
        try:
            url = f"http://127.0.0.1:{port}/plain"
            _wait_until_healthy(url, process, log)
            yield url
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


def _wait_until_healthy(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    raise ClusterError(f"The endpoint did not start; the end of its log: {log.read_text()[-2000:]}")


async def answer_served(url: str, prompts: Sequence[tuple[int, ...]], concurrency: int) -> Rate:
    """Keep `concurrency` requests at the endpoint until all prompts are answered."""
    slots = asyncio.Semaphore(concurrency)

    async def answer(session: aiohttp.ClientSession, prompt: tuple[int, ...]) -> int:
        body = {"prompt": prompt, "max_tokens": NEW_TOKENS, "temperature": 0}
        async with slots, session.post(f"{url}/v1/completions", json=body) as response:
            content: dict[str, Any] = await response.json()
            return int(content["usage"]["completion_tokens"])

    async with aiohttp.ClientSession() as session:
        began_s = time.perf_counter()
        tokens = await asyncio.gather(*(answer(session, prompt) for prompt in prompts))
        return float(sum(tokens)), time.perf_counter() - began_s


_engine: Any = None
"""Of the process that answers without a server."""


def open_engine() -> None:
    """Load the same engine in this process."""
    global _engine
    import torch

    from eagleray.engines.catalog import build_engine
    from eagleray.engines.native.config import NativeEngineConfig
    from eagleray.targets.config import TargetConfig
    from eagleray.targets.loading import resolve_target

    torch.set_num_threads(1)
    _engine = build_engine(
        NativeEngineConfig.model_validate(ENGINE), resolve_target(TargetConfig()), "float32"
    )


def answer_in_process(prompts: Sequence[tuple[int, ...]], concurrency: int) -> Rate:
    """Keep `concurrency` requests in the engine until all prompts are answered."""
    from eagleray.engines.base import Generation, GenerationRequest

    requests = [
        GenerationRequest(request_id=str(number), prompt_ids=prompt, max_new_tokens=NEW_TOKENS)
        for number, prompt in enumerate(prompts)
    ]
    began_s, tokens = time.perf_counter(), 0
    stream = _engine.open_stream()
    while requests or stream.unfinished:
        while requests and stream.unfinished < concurrency:
            stream.submit(requests.pop(0))
        tokens += sum(len(one.answer_ids) for one in stream.advance() if isinstance(one, Generation))
    return float(tokens), time.perf_counter() - began_s


def _prompts(count: int) -> list[tuple[int, ...]]:
    """Prompts of the demo's families in turns, as the target reads them."""
    from eagleray.corpus.chat import ChatTemplate, render_prompts
    from eagleray.corpus.families.catalog import family_prompts
    from eagleray.targets.config import TargetConfig
    from eagleray.targets.loading import load_tokenizer, resolve_target

    families = zip(family_prompts("code", seed=3), family_prompts("arithmetic", seed=3), strict=False)
    chosen = list(islice(chain.from_iterable(families), count))
    rendered, _ = render_prompts(ChatTemplate(load_tokenizer(resolve_target(TargetConfig()))), chosen)
    return [one.prompt_ids for one in rendered]


if __name__ == "__main__":
    app()

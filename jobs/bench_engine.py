"""Bench: the native engine against Hugging Face `generate`, against vLLM, and against itself with drafters.

Every part answers the same prompts in every way that it compares, one after the other, in an order that
rotates with the part; all of them greedy, in float32, with the same number of threads. Seconds are those
of the whole call, prefill included. Parts are kept, so a bench that was stopped goes on.
"""

import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from eagleray.monitoring.progress import ProgressListener, ProgressMeter
from eagleray.settings import Settings
from jobs import console
from jobs.bench import BENCH_FOLDER, Figure, Parts, exact, ratio_figure, write_bench

if TYPE_CHECKING:
    from eagleray.drafters.base import DraftSource
    from eagleray.engines.base import GenerationRequest
    from eagleray.engines.native.engine import NativeEngine
    from eagleray.engines.vllm.process import VllmServer

WORK = BENCH_FOLDER / "engine"
FAMILIES = ("code", "arithmetic", "prose")
DEPTHS = {"eagle3": (1, 3, 5, 7), "dflash": (7,)}
AUTO_DEPTH = 7
MANY = (8, 32)
VERIFIED_ROWS = 6
VERIFY_CONTEXT_TOKENS = 200
WARM_UP_TOKENS = 24

Run = tuple[int, float, int]
"""Answer tokens, seconds, target verifications (0 where nobody tells)."""
Way = Callable[[Sequence["GenerationRequest"]], tuple[list[tuple[int, ...]], int]]
"""Answers requests: their ids, and the verifications."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class Sizes(Settings):
    """How much is measured."""

    prompts: int
    rounds: int
    new_tokens: int
    threads: int
    depth: int


@app.command()
def main(
    drafters: Annotated[
        Path, typer.Option(help="Folder with the exported drafters `eagle3` and `dflash` of the demo.")
    ] = Path("runs/demo/drafters"),
    prompts: Annotated[int, typer.Option(help="Prompts that are answered one at a time.", min=2)] = 6,
    rounds: Annotated[int, typer.Option(help="Rounds of each batch.", min=1)] = 3,
    new_tokens: Annotated[int, typer.Option(help="Tokens of an answer.", min=8)] = 48,
    threads: Annotated[int, typer.Option(help="Threads of every contender.", min=1)] = 1,
    depth: Annotated[int, typer.Option(help="Depth of EAGLE-3 in the headline figures: 1, 3, 5 or 7.")] = 5,
    vllm: Annotated[
        Path | None,
        typer.Option(help="Environment that holds vLLM. None: no comparison with it.", envvar="VLLM_ENV"),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Measure anew what an earlier start finished.")
    ] = False,
) -> None:
    """Measure the engine and write runs/bench/engine.json. About 12 minutes on an idle core."""
    if fresh:
        shutil.rmtree(WORK, ignore_errors=True)
    sizes = Sizes(prompts=prompts, rounds=rounds, new_tokens=new_tokens, threads=threads, depth=depth)
    console.run(lambda listener, out: _bench(drafters, sizes, vllm, listener, out))


def _bench(drafters: Path, sizes: Sizes, vllm: Path | None, listener: ProgressListener, out: Console) -> None:
    from jobs.bench_engine_hf import HuggingFace

    setup = _Setup(drafters, sizes)
    steps = sizes.prompts + sizes.rounds * (2 + len(MANY) + len(FAMILIES) * (1 + len(MANY)))
    steps += (2 * sizes.prompts + sizes.rounds) if vllm else 0
    parts = Parts(WORK / "parts", ProgressMeter("engine bench", steps, "parts", listener))
    reference = HuggingFace(setup.folder)
    figures = {
        **_one_at_a_time(setup, reference, parts),
        **_batches(setup, reference, parts),
        **_verification(setup, parts),
        **_adaptive(setup, parts),
    }
    if vllm is not None:
        figures |= _against_vllm(setup, vllm, parts)
    for name, figure in figures.items():
        out.print(f"{name:<32} {figure.value:.3f}  {figure.low:.3f} to {figure.high:.3f}  n={figure.n}")
    out.print(f"figures {write_bench('engine', figures, setup.regime(vllm))}", markup=False)


class _Setup:
    """Engine, drafters and prompts."""

    def __init__(self, drafters: Path, sizes: Sizes):
        import torch

        from eagleray.drafters.folder import load_drafter
        from eagleray.engines.catalog import build_engine
        from eagleray.engines.native.config import NativeEngineConfig
        from eagleray.targets.config import TargetConfig
        from eagleray.targets.loading import resolve_target

        torch.set_num_threads(sizes.threads)
        self.sizes = sizes
        self.folder = resolve_target(TargetConfig())
        config = NativeEngineConfig(max_batch_size=max(MANY), threads=sizes.threads)
        self.engine: NativeEngine = build_engine(config, self.folder, "float32")
        self.drafter_folders = {label: drafters / label for label in DEPTHS}
        self.drafters: dict[str, DraftSource] = {
            label: load_drafter(folder, self.engine.decoder.heads).eval()
            for label, folder in self.drafter_folders.items()
        }
        self.prompts = {family: _prompt_ids(family, self.folder, max(MANY)) for family in FAMILIES}

    def requests(self, family: str, count: int, first: int = 0) -> "list[GenerationRequest]":
        """Some prompts of a family; `mixed` takes them from all families, so that lengths differ."""
        if family == "mixed":
            pools = [self.prompts[name] for name in FAMILIES]
            chosen = [pools[n % len(pools)][(first + n // len(pools)) % max(MANY)] for n in range(count)]
        else:
            chosen = [self.prompts[family][(first + n) % max(MANY)] for n in range(count)]
        return [_request(str(n), ids, self.sizes.new_tokens) for n, ids in enumerate(chosen)]

    def native(self, label: str | None = None, depth: int = 0, *, adaptive: bool = False) -> Way:
        """The native engine, plain or with a drafter."""
        from eagleray.engines.base import DraftSetting

        draft = label and DraftSetting(source=self.drafters[label], depth=depth, adaptive=adaptive)

        def answer(requests: "Sequence[GenerationRequest]") -> tuple[list[tuple[int, ...]], int]:
            generations = self.engine.generate(requests, draft=draft or None).generations
            return [one.answer_ids for one in generations], sum(len(one.cycles) for one in generations)

        return answer

    def regime(self, vllm: Path | None) -> dict[str, Any]:
        """What the figures depend on."""
        import importlib.metadata

        from eagleray.drafters.folder import drafter_hash

        return {
            "sizes": self.sizes.model_dump(),
            "dtype": "float32",
            "transformers": importlib.metadata.version("transformers"),
            "drafters": {label: drafter_hash(folder) for label, folder in self.drafter_folders.items()},
            "vllm": str(vllm) if vllm else None,
        }


def _request(name: str, ids: tuple[int, ...], new_tokens: int) -> "GenerationRequest":
    from eagleray.engines.base import GenerationRequest

    return GenerationRequest(request_id=name, prompt_ids=ids, max_new_tokens=new_tokens)


def _prompt_ids(family: str, folder: Path, count: int) -> list[tuple[int, ...]]:
    """Held-out prompts of the demo."""
    from eagleray.corpus.chat import ChatTemplate
    from eagleray.corpus.config import MtBenchSource
    from eagleray.corpus.families.catalog import family_prompts
    from eagleray.corpus.mt_bench import mt_bench_prompts
    from eagleray.targets.loading import load_tokenizer

    chat = ChatTemplate(load_tokenizer(folder))
    if family == "prose":
        source = MtBenchSource(
            kind="mt_bench", categories=("writing", "roleplay", "humanities", "stem"), count=count
        )
        prompts = mt_bench_prompts(source)
    else:
        prompts = list(islice(family_prompts(family, 2), count))
    return [chat.encode(chat.ask(prompt.messages)) for prompt in prompts]


def _interleaved(
    ways: Mapping[str, Way], requests: "Sequence[GenerationRequest]", turn: int
) -> dict[str, Any]:
    """Answer with every way. Returns the run of each, and whether its ids were those of the first way."""
    names = list(ways)
    shift = turn % len(names)
    runs: dict[str, Run] = {}
    ids: dict[str, list[tuple[int, ...]]] = {}
    for name in names[shift:] + names[:shift]:
        began_s = time.perf_counter()
        ids[name], cycles = ways[name](requests)
        runs[name] = (sum(map(len, ids[name])), time.perf_counter() - began_s, cycles)
    return {"runs": runs, "same": {name: ids[name] == ids[names[0]] for name in names}}


def _warmed(
    ways: Mapping[str, Way], requests: "Sequence[GenerationRequest]", new_tokens: int = WARM_UP_TOKENS
) -> Mapping[str, Way]:
    """What the first calls pay for is paid for before anything is timed."""
    from dataclasses import replace

    short = [replace(request, max_new_tokens=new_tokens) for request in requests]
    for answer in ways.values():
        answer(short)
    return ways


def _faster(parts: Iterable[Mapping[str, Any]], way: str, than: str) -> Figure:
    """Tokens per second of one way over those of another, over parts."""
    rates = [
        [tokens / seconds for tokens, seconds, _ in (part["runs"][way], part["runs"][than])] for part in parts
    ]
    return ratio_figure(rates, "ratio")


def _one_at_a_time(setup: _Setup, reference: Any, parts: Parts) -> dict[str, Figure]:
    ways: dict[str, Way] = {
        "plain": setup.native(),
        "hf": reference.plain,
        "hf_prompt_lookup": reference.lookup,
        "hf_assisted": reference.assisted,
    }
    for label, depths in DEPTHS.items():
        ways |= {f"{label}@{depth}": setup.native(label, depth) for depth in depths}
    if not all(parts.has(f"b1-code-{turn}") for turn in range(setup.sizes.prompts)):
        _warmed(ways, setup.requests("code", 1))
    measured = [
        parts.measured(f"b1-code-{turn}", partial(_interleaved, ways, setup.requests("code", 1, turn), turn))
        for turn in range(setup.sizes.prompts)
    ]
    eagle3, dflash = f"eagle3@{setup.sizes.depth}", f"dflash@{DEPTHS['dflash'][0]}"
    same = {way: [(part["same"][way], 1) for part in measured] for way in ways}
    return {
        "plain_vs_hf_b1": _faster(measured, "plain", "hf"),
        "eagle3_vs_plain_code_b1": _faster(measured, eagle3, "plain"),
        "eagle3_vs_hf_plain_code_b1": _faster(measured, eagle3, "hf"),
        "eagle3_vs_hf_prompt_lookup_b1": _faster(measured, eagle3, "hf_prompt_lookup"),
        "eagle3_vs_hf_assisted_b1": _faster(measured, eagle3, "hf_assisted"),
        "dflash_vs_plain_code_b1": _faster(measured, dflash, "plain"),
        "plain_same_ids_as_hf": ratio_figure(same["hf"], "ratio"),
        "eagle3_same_ids_as_plain": ratio_figure(same[eagle3], "ratio"),
        "dflash_same_ids_as_plain": ratio_figure(same[dflash], "ratio"),
        "eagle3_tau_code": _tau(measured, eagle3),
        "dflash_tau_code": _tau(measured, dflash),
        "cost_model_error_ratio": _cost_model_error(measured),
    }


def _tau(parts: Iterable[Mapping[str, Any]], way: str) -> Figure:
    """Tokens of a verification; the first token of an answer is prefill's."""
    rows = [(part["runs"][way][0] - 1, part["runs"][way][2]) for part in parts]
    return ratio_figure(rows, "tokens per verification")


def _cost_model_error(parts: Sequence[Mapping[str, Any]]) -> Figure:
    """Largest relative error of EAGLE-3's speedups on every other prompt, predicted by a fit to the rest."""
    from eagleray.speculation.costs import CycleCost, CyclePoint

    def points(some: Sequence[Mapping[str, Any]]) -> list[CyclePoint]:
        return [
            CyclePoint(
                draft_steps=depth,
                acceptance_length=_tau(some, f"eagle3@{depth}").value,
                speedup=_faster(some, f"eagle3@{depth}", "plain").value,
            )
            for depth in DEPTHS["eagle3"]
        ]

    cost = CycleCost.fit(points(parts[::2]))
    errors = [
        abs(cost.speedup(point.acceptance_length, point.draft_steps) / point.speedup - 1)
        for point in points(parts[1::2])
    ]
    return exact(max(errors), "ratio", len(parts))


def _batches(setup: _Setup, reference: Any, parts: Parts) -> dict[str, Figure]:
    ways: dict[str, Way] = {"plain": setup.native(), "hf": reference.plain}
    figures = {}
    for size in MANY:
        rounds = [(turn, setup.requests("mixed", size, turn * size)) for turn in range(setup.sizes.rounds)]
        measured = [
            parts.measured(f"b{size}-mixed-{turn}", partial(_interleaved, ways, requests, turn))
            for turn, requests in rounds
        ]
        figures[f"plain_vs_hf_b{size}"] = _faster(measured, "plain", "hf")
    return figures


def _verification(setup: _Setup, parts: Parts) -> dict[str, Figure]:
    names = [f"verify-{turn}" for turn in range(2 * setup.sizes.rounds)]
    rows = [parts.measured(name, lambda: _verify_s(setup.engine)) for name in names]
    return {f"verify{VERIFIED_ROWS}_vs_1": ratio_figure([(six, one) for one, six in rows], "ratio")}


def _verify_s(engine: "NativeEngine", times: int = 10) -> tuple[float, float]:
    """Seconds of a target step with one token and with several, the fastest of some, taken in turns."""
    import torch

    decoder = engine.decoder
    generator = torch.Generator().manual_seed(0)
    ids_T = torch.randint(0, decoder.geometry.vocab_size, (VERIFY_CONTEXT_TOKENS,), generator=generator)
    cache = decoder.new_cache(1, VERIFY_CONTEXT_TOKENS + VERIFIED_ROWS)
    fastest = {1: float("inf"), VERIFIED_ROWS: float("inf")}
    with torch.inference_mode():
        decoder.prefill(ids_T, [len(ids_T)], cache, 0)
        for _ in range(times):
            for rows in fastest:
                began_s = time.perf_counter()
                _, final_BQD = decoder.step(ids_T[None, :rows], cache)
                decoder.logits(final_BQD).argmax(-1)
                fastest[rows] = min(fastest[rows], time.perf_counter() - began_s)
    return fastest[1], fastest[VERIFIED_ROWS]


def _adaptive(setup: _Setup, parts: Parts) -> dict[str, Figure]:
    """Adaptive EAGLE-3 against plain decoding, for every family and concurrency, and the lowest of these."""
    ways = {"plain": setup.native(), "auto": setup.native("eagle3", AUTO_DEPTH, adaptive=True)}
    figures = {}
    for family in FAMILIES:
        for size in (1, *MANY):
            names = [f"auto-{family}-b{size}-{turn}" for turn in range(setup.sizes.rounds)]
            if not all(map(parts.has, names)):
                # As long as what is timed: what was learned of another family is no part of this workload.
                _warmed(ways, setup.requests(family, size), setup.sizes.new_tokens)
            rounds = [(turn, setup.requests(family, size, turn * size)) for turn in range(setup.sizes.rounds)]
            measured = [
                parts.measured(names[turn], partial(_interleaved, ways, requests, turn))
                for turn, requests in rounds
            ]
            figures[f"auto_vs_plain_{family}_b{size}"] = _faster(measured, "auto", "plain")
    lowest = min(figures.values(), key=lambda figure: figure.value)
    return {**figures, "auto_vs_plain_min": lowest}


def _against_vllm(setup: _Setup, environment: Path, parts: Parts) -> dict[str, Figure]:
    from eagleray.engines.served import ServedDrafter

    sizes = setup.sizes
    plain = [f"vllm-b1-{turn}" for turn in range(sizes.prompts)]
    eight = [f"vllm-b8-{turn}" for turn in range(sizes.rounds)]
    drafted = [f"vllm-eagle3-b1-{turn}" for turn in range(sizes.prompts)]

    def measure(server: "VllmServer", own: Way, names: Sequence[str], family: str, size: int) -> None:
        ways: dict[str, Way] = {"native": own, "vllm": _served(server)}
        _warmed(ways, setup.requests(family, size))
        for turn, name in enumerate(names):
            requests = setup.requests(family, size, turn * size)
            parts.measured(name, partial(_interleaved, ways, requests, turn))

    if not all(map(parts.has, (*plain, *eight))):
        with _server(setup, environment, None) as server:
            measure(server, setup.native(), plain, "code", 1)
            measure(server, setup.native(), eight, "mixed", 8)
    if not all(map(parts.has, drafted)):
        drafter = ServedDrafter(folder=setup.drafter_folders["eagle3"], depth=sizes.depth)
        with _server(setup, environment, drafter) as server:
            measure(server, setup.native("eagle3", sizes.depth), drafted, "code", 1)
    return {
        "plain_vs_vllm_b1": _faster(map(parts.kept, plain), "native", "vllm"),
        "plain_vs_vllm_b8": _faster(map(parts.kept, eight), "native", "vllm"),
        "eagle3_vs_vllm_eagle3_b1": _faster(map(parts.kept, drafted), "native", "vllm"),
    }


def _server(setup: _Setup, environment: Path, drafter: Any) -> "VllmServer":
    from eagleray.engines.vllm.config import VllmConfig
    from eagleray.engines.vllm.process import VllmServer

    config = VllmConfig(environment=environment, threads=setup.sizes.threads)
    return VllmServer(config, setup.folder, drafter, WORK / f"vllm-{'eagle3' if drafter else 'plain'}.log")


def _served(server: "VllmServer") -> Way:
    """The server, asked for all requests at once."""

    def answer(requests: "Sequence[GenerationRequest]") -> tuple[list[tuple[int, ...]], int]:
        with ThreadPoolExecutor(len(requests)) as pool:
            told = list(pool.map(lambda one: server.complete(one.prompt_ids, one.max_new_tokens), requests))
        return [one.answer_ids for one in told], sum(len(one.cycles) for one in told)

    return answer


if __name__ == "__main__":
    app()

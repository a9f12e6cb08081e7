"""Load on servers: the same prompts to every server, in blocks that take turns, at a concurrency or a rate.

Plain and drafted blocks alternate on one machine and one build, so that what slows the machine down slows
both; the order of the servers rotates from block to block.
"""

import asyncio
import glob
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from eagleray.corpus.chat import RenderedPrompt
from eagleray.evaluation.endpoint.arrivals import read_gaps_s
from eagleray.evaluation.endpoint.client import EndpointClient, Served
from eagleray.evaluation.endpoint.config import EndpointConfig
from eagleray.evaluation.machine_load import WindowLoad, measured_load
from eagleray.settings import Settings

PLAIN = "plain"


class Block(Settings):
    """What one server answered in one turn."""

    arm: str
    """`plain`, or a drafter's label."""
    load: str
    """`closed-<concurrency>`, `open-<arrivals per second>` or `replay-<log>-x<speed>`."""
    concurrency: int | None
    """Requests kept at the server at once; None where they come by themselves."""
    number: int
    """Blocks of one number hold the same prompts."""
    wall_s: float
    machine_load: WindowLoad
    """Of the client's machine, on which the server may run or not."""
    engine_s: dict[str, float] = {}
    """Seconds that the engine spent on the block in prefill, draft, verify and host; empty where the server
    does not tell."""
    answers: tuple[Served, ...]

    @property
    def tokens_per_s(self) -> float:
        """All tokens over the wall time."""
        return sum(answer.tokens for answer in self.answers) / self.wall_s


@dataclass(frozen=True, kw_only=True)
class Load:
    """How requests come: one of the three."""

    concurrency: int | None = None
    """So many at once, a new one whenever one is answered."""
    arrivals_per_s: float | None = None
    """By chance, at this mean rate (Poisson)."""
    gaps_s: tuple[float, ...] = ()
    """With these seconds between them, which begin anew behind the last."""
    label: str = ""
    """Names the log that the gaps are of."""

    @property
    def name(self) -> str:
        """Names the load in records."""
        if self.concurrency is not None:
            return f"closed-{self.concurrency}"
        return f"open-{self.arrivals_per_s:g}" if self.arrivals_per_s is not None else f"replay-{self.label}"

    def waits_s(self, first: int, count: int, seed: int) -> list[float]:
        """Seconds to wait after each request of an open loop: the same for every server.

        Args:
            first: Place of the first request in the order of all.
        """
        if self.arrivals_per_s is not None:
            draw = random.Random(seed + first)
            return [draw.expovariate(self.arrivals_per_s) for _ in range(count)]
        return [self.gaps_s[place % len(self.gaps_s)] for place in range(first, first + count)]


def plan_loads(config: EndpointConfig) -> list[Load]:
    """Every load of a configuration.

    Raises:
        DataError: A log does not say when its requests came.
    """
    closed = [Load(concurrency=concurrency) for concurrency in config.concurrencies]
    poisson = [Load(arrivals_per_s=rate) for rate in config.arrivals_per_s]
    replays = [
        Load(
            gaps_s=tuple(gap_s / replay.speed for gap_s in read_gaps_s(replay.log)),
            label=f"{_log_name(replay.log)}-x{replay.speed:g}",
        )
        for replay in config.replays
    ]
    return [*closed, *poisson, *replays]


def _log_name(log: str) -> str:
    """The name of a log's file, or of the folder where a glob names many."""
    path = Path(log)
    return path.parent.name if glob.has_magic(path.name) else path.stem


Progress = Callable[[str], None]


async def measure_load(
    load: Load,
    clients: Mapping[str, EndpointClient],
    prompts: Sequence[RenderedPrompt],
    config: EndpointConfig,
    on_block: Progress,
) -> list[Block]:
    """Answer all prompts on every server under one load, in turns.

    Args:
        clients: By arm, `plain` among them.

    Raises:
        EngineError: A server refused or broke off.
    """
    order = list(prompts)
    if not load.gaps_s:
        random.Random(config.seed).shuffle(order)
    for client in clients.values():
        await _answer(load, client, order[: config.warm_up_prompts], 0, config)
    blocks = []
    # A block ends with fewer requests at once than it was asked to hold: it must not be all end.
    size = max(config.block_prompts, 2 * (load.concurrency or 1))
    for number, start in enumerate(range(0, len(order), size)):
        turn = order[start : start + size]
        arms = list(clients)
        shift = number % len(arms)
        for arm in arms[shift:] + arms[:shift]:
            before_s = await clients[arm].engine_s()
            with measured_load() as window:
                began_s = time.perf_counter()
                answers = await _answer(load, clients[arm], turn, start, config)
                wall_s = time.perf_counter() - began_s
            after_s = await clients[arm].engine_s()
            blocks.append(
                Block(
                    arm=arm,
                    load=load.name,
                    concurrency=load.concurrency,
                    number=number,
                    wall_s=wall_s,
                    machine_load=window.load,
                    engine_s={part: after_s[part] - before_s[part] for part in after_s},
                    answers=tuple(answers),
                )
            )
            on_block(f"{load.name} {arm}: {blocks[-1].tokens_per_s:.1f} tokens/s")
    return blocks


async def _answer(
    load: Load,
    client: EndpointClient,
    prompts: Sequence[RenderedPrompt],
    first: int,
    config: EndpointConfig,
) -> list[Served]:
    async def one(item: RenderedPrompt) -> Served:
        prompt = item.prompt
        return await client.answer(prompt.prompt_id, prompt.category, item.prompt_ids, config.max_new_tokens)

    if load.concurrency:
        slots = asyncio.Semaphore(load.concurrency)

        async def in_turn(item: RenderedPrompt) -> Served:
            async with slots:
                return await one(item)

        return await asyncio.gather(*map(in_turn, prompts))
    tasks = []
    for item, wait_s in zip(prompts, load.waits_s(first, len(prompts), config.seed), strict=True):
        tasks.append(asyncio.ensure_future(one(item)))
        await asyncio.sleep(wait_s)
    return await asyncio.gather(*tasks)


async def draw_answers(
    clients: Mapping[str, EndpointClient], item: RenderedPrompt, config: EndpointConfig
) -> dict[str, list[tuple[int, ...]]]:
    """Draw answers to one prompt at temperature 1 from every server, under seeds that no two servers share.

    Returns:
        Ids of the answers by arm; empty ids where the server does not tell them.
    """
    slots = asyncio.Semaphore(max(config.concurrencies))

    async def one(client: EndpointClient, seed: int) -> tuple[int, ...]:
        prompt = item.prompt
        async with slots:
            answer = await client.answer(
                prompt.prompt_id,
                prompt.category,
                item.prompt_ids,
                config.sampled_tokens,
                temperature=1.0,
                seed=seed,
            )
        return answer.answer_ids

    count = config.sampled_answers
    return {
        arm: list(await asyncio.gather(*(one(client, place * count + number) for number in range(count))))
        for place, (arm, client) in enumerate(clients.items())
    }

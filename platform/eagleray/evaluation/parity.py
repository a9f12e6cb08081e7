"""One drafter, three measures of tau: replayed, decoded live by us, and served by another engine.

They must agree. A gap between any two is a bug with a name: positions or layer ids off by one, a leaking
mask, a lost vocabulary map.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from eagleray.engines.base import DraftSetting, GenerationRequest
from eagleray.engines.native.engine import NativeEngine
from eagleray.engines.replayed import replay_generations
from eagleray.engines.served import Completion
from eagleray.evaluation.bootstrap import Floats, ratio_of_sums
from eagleray.speculation.acceptance import Cycle


class GreedyServer(Protocol):
    """A running server of another engine."""

    @property
    def max_concurrency(self) -> int:
        """Requests that it answers together."""
        ...

    def complete(self, prompt_ids: Sequence[int], max_new_tokens: int) -> Completion:
        """Answer one prompt greedily; several threads may ask at once."""
        ...


@dataclass(frozen=True, kw_only=True)
class PromptParity:
    """What the three measures gave on one prompt."""

    replayed: tuple[Cycle, ...]
    native: tuple[Cycle, ...]
    served: tuple[Cycle, ...] | None
    """None: no other engine serves this drafter."""
    same_ids: bool
    """Plain, drafted and served answers are the same ids."""


def compare(
    native: NativeEngine,
    server: GreedyServer | None,
    draft: DraftSetting,
    requests: Sequence[GenerationRequest],
) -> list[PromptParity]:
    """Answer every request in the native engine and on the server, and replay the answers.

    Args:
        server: Runs the exported folder of the same drafter at the same depth; None compares the other two.
    """
    plain = native.generate(requests, capture_layers=draft.source.tapped_layers).generations
    live = native.generate(requests, draft=draft).generations
    replayed = replay_generations(draft, requests, plain)
    served = _serve(server, requests) if server else [None] * len(requests)
    return [
        PromptParity(
            replayed=cycles,
            native=decoded.cycles,
            served=answer.cycles if answer else None,
            same_ids=undrafted.answer_ids
            == decoded.answer_ids
            == (answer.answer_ids if answer else decoded.answer_ids),
        )
        for undrafted, decoded, cycles, answer in zip(plain, live, replayed, served, strict=True)
    ]


def _serve(server: GreedyServer, requests: Sequence[GenerationRequest]) -> list[Completion | None]:
    with ThreadPoolExecutor(server.max_concurrency) as pool:
        return list(pool.map(lambda r: server.complete(r.prompt_ids, r.max_new_tokens), requests))


def delivered_and_cycles(cycles: Sequence[Cycle]) -> tuple[int, int]:
    """The two sums that tau is the ratio of."""
    return sum(cycle.delivered for cycle in cycles), len(cycles)


def tau_ratio_of_sums(sums_C: Floats) -> Floats:
    """Tau over tau, from the columns delivered, cycles, delivered, cycles."""
    upper, lower = ratio_of_sums(sums_C[..., :2]), ratio_of_sums(sums_C[..., 2:])
    return upper / lower

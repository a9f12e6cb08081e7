"""The engine bench's arithmetic, on runs made by hand."""

import json
import threading
from pathlib import Path

import pytest

from eagleray.engines.base import GenerationRequest
from eagleray.engines.served import Completion
from eagleray.monitoring.progress import ProgressMeter
from eagleray.speculation.acceptance import Cycle
from jobs.bench import Parts
from jobs.bench_engine import DEPTHS, _cost_model_error, _faster, _interleaved, _served, _tau


def part(**runs: tuple[int, float, int]) -> dict:
    return {"runs": runs, "same": dict.fromkeys(runs, True)}


def test_faster_is_the_ratio_of_rates_and_not_of_seconds() -> None:
    """A way that answers twice as long in the same time is twice as fast."""
    figure = _faster([part(own=(40, 2.0, 0), other=(20, 2.0, 0))] * 3, "own", "other")
    assert (figure.value, figure.low, figure.high, figure.n) == (2.0, 2.0, 2.0, 3)


def test_tau_leaves_the_token_of_prefill_out() -> None:
    assert _tau([part(own=(25, 1.0, 8)), part(own=(13, 1.0, 4))], "own").value == pytest.approx(3.0)


@pytest.mark.parametrize("turn", [0, 1, 2, 5])
def test_every_way_runs_once_in_an_order_that_rotates(turn: int) -> None:
    order: list[str] = []

    def way(name: str, ids: tuple[int, ...]):
        def answer(requests):
            order.append(name)
            return [ids], 3

        return answer

    ways = {"a": way("a", (1, 2)), "b": way("b", (1, 2)), "c": way("c", (1, 3))}
    told = _interleaved(ways, [], turn)
    assert order == ["a", "b", "c"][turn % 3 :] + ["a", "b", "c"][: turn % 3]
    assert told["same"] == {"a": True, "b": True, "c": False}
    assert {name: run[0] for name, run in told["runs"].items()} == {"a": 2, "b": 2, "c": 2}


def test_a_cost_model_that_holds_has_no_error_and_another_machine_half_way_has() -> None:
    """Cycles of 1.1 + 0.1 D seconds, beside plain steps of one; then the second prompt has 1.3 + 0.1 D."""

    def measured(fixed: float) -> dict:
        runs = {"plain": (31, 31.0, 30)}
        for depth in DEPTHS["eagle3"]:
            cycles = 30 // (1 + depth // 2)
            # The first token takes the time of the model too, so that ratios are exact.
            tokens = cycles * (1 + depth // 2) + 1
            cycle_s = (tokens / (tokens - 1)) * cycles * (fixed + 0.1 * depth)
            runs[f"eagle3@{depth}"] = (tokens, cycle_s, cycles)
        return part(**runs)

    assert _cost_model_error([measured(1.1), measured(1.1)]).value == pytest.approx(0.0, abs=1e-9)
    assert _cost_model_error([measured(1.1), measured(1.3)]).value == pytest.approx(0.2 / 1.2, abs=0.01)


def test_a_server_answers_all_requests_at_once_in_their_order() -> None:
    together = threading.Barrier(3, timeout=30)

    class Server:
        def complete(self, prompt_ids, max_new_tokens):
            together.wait()
            cycle = Cycle(drafted=0, accepted=0, delivered=1)
            return Completion(
                answer_ids=prompt_ids * max_new_tokens,
                finish_reason="length",
                cycles=(cycle,) * max_new_tokens,
            )

    requests = [
        GenerationRequest(request_id=str(token), prompt_ids=(token,), max_new_tokens=2) for token in (4, 5, 6)
    ]
    assert _served(Server())(requests) == ([(4, 4), (5, 5), (6, 6)], 6)


def test_a_part_is_measured_once(tmp_path: Path) -> None:
    calls = []

    def measure() -> list[float]:
        calls.append(1)
        return [1.5, 2.0]

    for _ in range(2):
        parts = Parts(tmp_path, ProgressMeter("bench", 1, "parts", lambda _: None))
        assert parts.measured("one", measure) == [1.5, 2.0]
    assert len(calls) == 1
    assert parts.has("one")
    assert not parts.has("two")
    assert parts.kept("one") == json.loads((tmp_path / "one.json").read_text())

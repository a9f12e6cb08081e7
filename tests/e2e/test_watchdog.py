"""Ranks that really hang, block, stop, die and run out of memory are seen, blamed rightly and survived."""

from pathlib import Path

import pytest

from jobs.real_faults import (
    CULPRIT,
    RIGHT_VERDICT,
    STEP,
    Aftermath,
    distil,
    train_with_faults,
    undisturbed_tokens,
)


@pytest.fixture(scope="module")
def distilled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("distilled")
    distil(root)
    return root


def check_that_nothing_was_lost(after: Aftermath, distilled: Path) -> None:
    """The same samples in the same steps, of the same length, as if nothing had failed."""
    expected = undisturbed_tokens(distilled)
    assert after.steps == tuple(range(1, len(expected) + 1))
    assert after.supervised_tokens == expected
    assert after.trained_length == 256


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_want_of_memory_takes_a_step_that_needs_less_of_it(distilled: Path, tmp_path: Path) -> None:
    after = train_with_faults(distilled, tmp_path / "runs", [("raise", 3), ("raise", 5)])
    assert (after.recompute_activations, after.micro_batch_size) == (True, 1)
    check_that_nothing_was_lost(after, distilled)


@pytest.mark.timeout(1800)
def test_a_death_and_an_exception_for_want_of_memory_cost_an_attempt_each(
    distilled: Path, tmp_path: Path
) -> None:
    after = train_with_faults(distilled, tmp_path / "runs", [("die", 3), ("raise", STEP)])
    assert [(told["kind"], told["culprit"]) for told in after.ending()] == [("dead_rank", CULPRIT)]
    assert "dead_rank of rank 1: same settings again" in after.log
    assert "rank 1 ran out of memory: activations are recomputed from now on" in after.log
    assert (after.recompute_activations, after.micro_batch_size) == (True, 2)
    check_that_nothing_was_lost(after, distilled)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("fault", RIGHT_VERDICT)
def test_a_fault_is_seen_blamed_kept_and_survived(fault: str, distilled: Path, tmp_path: Path) -> None:
    after = train_with_faults(distilled, tmp_path / "runs", [(fault, STEP)])
    assert {(told["kind"], told["culprit"]) for told in after.incidents} == {(RIGHT_VERDICT[fault], CULPRIT)}
    (ending,) = after.ending()
    print(f"{fault}: told after {after.incidents[0]['after_s']:.1f} s, ended after {ending['after_s']:.1f} s")
    place = Path(ending["place"])
    assert f"rank {CULPRIT} (ended the attempt)" in (place / "summary.md").read_text()
    if fault != "die":
        assert "sitecustomize.py" in (place / "stacks" / f"{CULPRIT}.txt").read_text()
    check_that_nothing_was_lost(after, distilled)

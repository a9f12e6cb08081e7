"""The setting `deterministic` holds for the steps of a run, and for nothing after it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from eagleray.errors import ConfigError
from eagleray.training.loop import TrainingJob, train

MakeJob = Callable[..., TrainingJob]


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """A failing test must not change what others run with."""
    yield
    torch.use_deterministic_algorithms(False)


def on_backward(job: TrainingJob, act: Callable[[], None]) -> None:
    """Do something within the backward pass of every step."""

    def hook(gradient: Tensor) -> None:
        act()

    next(job.backend.drafter.parameters()).register_hook(hook)


def irreproducible() -> None:
    """An operation that torch refuses in its deterministic mode on every device."""
    torch.zeros(4).put_(torch.tensor([1, 1]), torch.tensor([1.0, 2.0]))


@pytest.mark.parametrize("wanted", [True, False])
def test_torch_refuses_within_the_steps_as_the_setting_says_and_never_after(
    job: MakeJob, wanted: bool
) -> None:
    seen: set[tuple[bool, bool]] = set()
    made = job(epochs=1, deterministic=wanted)
    on_backward(
        made,
        lambda: seen.add(
            (
                torch.are_deterministic_algorithms_enabled(),
                torch.is_deterministic_algorithms_warn_only_enabled(),
            )
        ),
    )
    train(made)
    assert seen == {(wanted, False)}
    assert not torch.are_deterministic_algorithms_enabled()


def test_what_was_set_before_is_set_afterwards(job: MakeJob) -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    train(job(epochs=1, deterministic=True))
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.is_deterministic_algorithms_warn_only_enabled()


def test_an_operation_that_cannot_be_repeated_is_refused_with_the_setting(job: MakeJob) -> None:
    made = job(epochs=1, deterministic=True)
    on_backward(made, irreproducible)
    with pytest.raises(ConfigError, match=r"training\.deterministic is true.*put_.*to false"):
        train(made)
    assert not torch.are_deterministic_algorithms_enabled()
    free = job("free", epochs=1)
    on_backward(free, irreproducible)
    train(free)


def test_other_errors_stay_what_they_are(job: MakeJob) -> None:
    def fail() -> None:
        raise RuntimeError("Connection closed by peer")

    made: Any = job(epochs=1, deterministic=True)
    on_backward(made, fail)
    with pytest.raises(RuntimeError, match="Connection closed by peer"):
        train(made)
    assert not torch.are_deterministic_algorithms_enabled()


def test_two_runs_have_equal_bits_and_another_seed_has_others(job: MakeJob) -> None:
    def weights(folder: str, seed: int) -> dict[str, Tensor]:
        made = job(folder, epochs=1, deterministic=True, seed=seed)
        train(made)
        return made.backend.weights()

    first, again, other = weights("first", 0), weights("again", 0), weights("other", 1)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)

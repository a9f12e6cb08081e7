"""Files of hidden states: taken once, as features of our layers, and only if they are what was asked for."""

import asyncio
import fcntl
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig

from eagleray.engines.base import CapturedFeatures
from eagleray.engines.vllm.capture import HiddenStates
from eagleray.engines.vllm.captured import CapturedReader
from eagleray.errors import EngineError
from eagleray.targets.weights import FINAL_NORM

IDS = (5, 6, 7, 8, 9)
NUM_LAYERS, WIDTH = 6, 16
EPSILON = 1e-3

Write = Callable[..., Path]


@pytest.fixture
def norm_D() -> Tensor:
    return torch.linspace(0.5, 1.5, WIDTH)


@pytest.fixture
def target(tmp_path: Path, norm_D: Tensor) -> Path:
    folder = tmp_path / "target"
    LlamaConfig(
        hidden_size=WIDTH,
        intermediate_size=16,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=2,
        vocab_size=32,
        rms_norm_eps=EPSILON,
    ).save_pretrained(folder)
    save_file({FINAL_NORM: norm_D}, folder / "model.safetensors")
    return folder


@pytest.fixture
def capture(tmp_path: Path) -> HiddenStates:
    folder = tmp_path / "states"
    folder.mkdir()
    return HiddenStates(layers=(0, 3), num_layers=NUM_LAYERS, folder=folder)


@pytest.fixture
def reader(capture: HiddenStates, target: Path) -> CapturedReader:
    return CapturedReader(capture, target, torch.float32, timeout_s=0.3)


@pytest.fixture
def states_TED() -> Tensor:
    """What enters layers 1 and 4, and what leaves the last one."""
    return torch.randn(len(IDS) - 1, 3, WIDTH, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def write(capture: HiddenStates, states_TED: Tensor) -> Write:
    """Write what vLLM writes of a request, but for what is given."""

    def write(**tensors: Tensor) -> Path:
        path = capture.folder.absolute() / "cmpl-1.safetensors"
        save_file({"hidden_states": states_TED, "token_ids": torch.tensor(IDS[:-1]), **tensors}, path)
        path.with_name(f"{path.name}.lock").touch()
        return path

    return write


def take(reader: CapturedReader, path: Path | str | None) -> CapturedFeatures:
    return asyncio.run(reader.take(path if path is None else str(path), IDS))


def test_outputs_of_our_layers_and_the_normed_last_state_are_taken_and_the_files_removed(
    reader: CapturedReader, write: Write, capture: HiddenStates, states_TED: Tensor, norm_D: Tensor
) -> None:
    captured = take(reader, write())
    assert torch.equal(captured.features_TLD, states_TED[:, :2])
    last_TD = states_TED[:, 2]
    scale_T1 = torch.rsqrt(last_TD.square().mean(dim=-1, keepdim=True) + EPSILON)
    torch.testing.assert_close(captured.final_TD, last_TD * scale_T1 * norm_D)
    assert list(capture.folder.iterdir()) == []


def test_the_last_layer_s_output_is_the_last_state_before_its_norm(
    target: Path, write: Write, tmp_path: Path, states_TED: Tensor
) -> None:
    capture = HiddenStates(layers=(0, 3, NUM_LAYERS - 1), num_layers=NUM_LAYERS, folder=tmp_path / "states")
    captured = take(CapturedReader(capture, target, torch.float32, timeout_s=1.0), write())
    assert torch.equal(captured.features_TLD, states_TED)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"token_ids": torch.tensor([5, 6, 1, 8])}, r"other tokens.*position 2 on \(\[1, 8\] instead of"),
        ({"token_ids": torch.tensor([5, 6])}, r"2 instead of 4, and they differ from position 2"),
        ({"hidden_states": torch.zeros(4, 2, WIDTH)}, r"\(4, 2, 16\).*expected \(4, 3, 16\)"),
        ({"hidden_states": torch.zeros(3, 3, WIDTH)}, r"\(3, 3, 16\).*expected \(4, 3, 16\)"),
        ({"hidden_states": torch.zeros(4, 3, WIDTH, dtype=torch.bfloat16)}, r"bfloat16.*float32"),
    ],
)
def test_states_of_other_tokens_layers_or_numbers_are_refused_and_removed(
    reader: CapturedReader, write: Write, capture: HiddenStates, tensors: dict[str, Tensor], message: str
) -> None:
    with pytest.raises(EngineError, match=message):
        take(reader, write(**tensors))
    assert list(capture.folder.iterdir()) == []


def test_a_file_in_another_form_is_refused(reader: CapturedReader, write: Write) -> None:
    path = write()
    save_file({"states": torch.zeros(1)}, path)
    with pytest.raises(EngineError, match="holds states; expected hidden_states, token_ids"):
        take(reader, path)
    path = write()
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(EngineError, match="cannot be read"):
        take(reader, path)


@pytest.mark.parametrize("told", [None, "/tmp/elsewhere.safetensors"])
def test_an_answer_that_promises_no_file_of_ours_is_refused(reader: CapturedReader, told: str | None) -> None:
    with pytest.raises(EngineError, match=f"answered with {told or 'no path'}"):
        take(reader, told)


def test_a_file_that_is_being_written_is_waited_for(reader: CapturedReader, write: Write) -> None:
    path = write()
    whole = path.read_bytes()
    path.write_bytes(whole[:40])
    with path.with_name(f"{path.name}.lock").open() as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)

        def finish() -> None:
            path.write_bytes(whole)
            fcntl.flock(writer, fcntl.LOCK_UN)

        later = threading.Timer(0.05, finish)
        later.start()
        assert len(take(reader, path).final_TD) == len(IDS) - 1
        later.join()


def test_a_writer_that_never_ends_and_one_that_died_are_errors(reader: CapturedReader, write: Write) -> None:
    path = write()
    with path.with_name(f"{path.name}.lock").open() as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        with pytest.raises(EngineError, match=r"still being written after 0\.3 s"):
            take(reader, path)
    path = write()
    path.unlink()
    with pytest.raises(EngineError, match="No such file"):
        take(reader, path)

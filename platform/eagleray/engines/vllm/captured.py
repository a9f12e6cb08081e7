"""Reads what a capturing vLLM wrote for one request, as features of our store.

Shapes: T prompt and answer tokens, E layers in the file, L asked layers, D target width.
"""

import asyncio
import fcntl
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from eagleray.engines.base import CapturedFeatures
from eagleray.engines.vllm.capture import HiddenStates
from eagleray.errors import EngineError
from eagleray.targets.geometry import TargetGeometry
from eagleray.targets.heads import read_tensor
from eagleray.targets.layers import RMSNorm
from eagleray.targets.weights import FINAL_NORM

TENSORS = {"hidden_states", "token_ids"}
POLL_S = 0.005


class CapturedReader:
    """Takes the files of one server, each once.

    Args:
        target: Hugging Face folder of the target; only its final norm is read, which vLLM's last state lacks.
        dtype: What the server computes in.
        timeout_s: Longest wait for a file that was promised.

    Raises:
        ArtifactError: The target's folder holds no final norm.
    """

    def __init__(self, capture: HiddenStates, target: Path, dtype: torch.dtype, timeout_s: float):
        self.layers = capture.layers
        geometry = TargetGeometry.read(target)
        self._capture = capture
        self._width = geometry.hidden_size
        self._dtype = dtype
        self._timeout_s = timeout_s
        self._final_norm = RMSNorm(read_tensor(target, FINAL_NORM, dtype), geometry.rms_norm_eps)

    async def take(self, path: str | None, ids: Sequence[int]) -> CapturedFeatures:
        """Wait for the file of a request, read it and remove it.

        Args:
            path: What the server answered; None if it promised none.
            ids: Prompt and answer.

        Raises:
            EngineError: There is no file, or it is of other tokens, layers or numbers.
        """
        if path is None or Path(path).parent != self._capture.folder.absolute():
            raise EngineError(
                f"vLLM was to write hidden states into {self._capture.folder} and answered with "
                f"{path or 'no path'}. Run jobs.doctor on its environment."
            )
        return await asyncio.to_thread(self._take, Path(path), ids)

    def _take(self, path: Path, ids: Sequence[int]) -> CapturedFeatures:
        lock = path.with_name(f"{path.name}.lock")
        try:
            _wait_for_writer(lock, self._timeout_s)
            content = load_file(path)
        except (OSError, SafetensorError) as error:
            raise EngineError(
                f"vLLM promised hidden states in {path}, and they cannot be read ({error}). Look for a "
                "failed write in its log: the folder may be full, which TMPDIR moves elsewhere."
            ) from None
        finally:
            path.unlink(missing_ok=True)
            lock.unlink(missing_ok=True)
        return self._convert(path.name, content, ids)

    def _convert(self, name: str, content: dict[str, Tensor], ids: Sequence[int]) -> CapturedFeatures:
        if content.keys() != TENSORS:
            raise EngineError(
                f"Hidden states {name} of vLLM holds {', '.join(sorted(content))}; expected "
                f"{', '.join(sorted(TENSORS))}. Run jobs.doctor on its environment."
            )
        states_TED, seen_T = content["hidden_states"], content["token_ids"]
        if (seen := tuple(seen_T.tolist())) != tuple(ids[:-1]):
            raise EngineError(_other_tokens(name, seen, ids[:-1]))
        expected = (len(ids) - 1, len(self._capture.engine_ids), self._width)
        if states_TED.shape != expected or states_TED.dtype != self._dtype:
            raise EngineError(
                f"Hidden states {name} of vLLM are {tuple(states_TED.shape)} in {states_TED.dtype}; expected "
                f"{expected} (tokens, layers, width) in {self._dtype}. Run jobs.doctor on its environment."
            )
        return CapturedFeatures(
            features_TLD=states_TED[:, list(self._capture.places)],
            final_TD=self._final_norm(states_TED[:, -1].contiguous()),
        )


def _wait_for_writer(lock: Path, timeout_s: float) -> None:
    """The server holds the lock from before it answers until the file is whole, or until it dies."""
    deadline_s = time.monotonic() + timeout_s
    with lock.open() as stream:
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline_s:
                    raise TimeoutError(f"still being written after {timeout_s:g} s") from None
                time.sleep(POLL_S)
            else:
                return


def _other_tokens(name: str, seen: Sequence[int], wanted: Sequence[int]) -> str:
    place = next(
        (index for index, (a, b) in enumerate(zip(seen, wanted, strict=False)) if a != b),
        min(len(seen), len(wanted)),
    )
    return (
        f"Hidden states {name} of vLLM are of other tokens than its answer: {len(seen)} instead of "
        f"{len(wanted)}, and they differ from position {place} on ({list(seen[place : place + 4])} instead "
        f"of {list(wanted[place : place + 4])}). Run jobs.doctor on its environment."
    )

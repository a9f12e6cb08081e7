"""Gradients on a GPU have the same bits in every process that begins with a worker's environment."""

import os
import subprocess
import sys

import pytest

from eagleray.cluster.last_resorts import worker_environment

pytestmark = pytest.mark.gpu

RANK = """
import hashlib, torch
from eagleray.training.determinism import deterministic
with deterministic(True):
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Embedding(64, 256), torch.nn.Linear(256, 256)).cuda()
    layers(torch.randint(64, (4096,), device="cuda")).square().sum().backward()
    gradients = b"".join(weight.grad.cpu().numpy().tobytes() for weight in layers.parameters())
    print(hashlib.sha256(gradients).hexdigest())
"""


def _rank() -> str:
    variables = worker_environment(None, nccl=True, deterministic=True)["env_vars"]
    told = subprocess.run(
        [sys.executable, "-c", RANK], env=os.environ | variables, capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stderr
    return told.stdout


def test_two_processes_compute_gradients_of_equal_bits() -> None:
    assert _rank() == _rank()

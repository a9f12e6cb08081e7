"""The fused norm and rotation on a real device."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "unit/drafters/blocks/masked_block/compare_norm_rotate.py"


@pytest.mark.gpu
def test_the_fused_kernel_gives_what_the_plain_twin_gives_on_a_gpu() -> None:
    subprocess.run([sys.executable, SCRIPT, "cuda"], check=True)

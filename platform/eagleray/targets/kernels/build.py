"""C compiled for this processor on first use, and kept.

A machine without a C compiler runs without: whoever asks has a twin in torch.
"""

import ctypes
import hashlib
import logging
import shutil
import subprocess
import sysconfig
from functools import cache
from pathlib import Path

import platformdirs
import torch

from eagleray.files import write_atomically

FLAGS = ("-O3", "-march=native", "-fPIC", "-shared", "-fopenmp")
COMPILE_TIMEOUT_S = 120.0
SHARED_WORK = 2**18
"""Multiplications from which threads share a call: fewer are done before the threads have met."""

logger = logging.getLogger(__name__)


def threads_for(work: int) -> int:
    """Threads that a call of so many multiplications is worth."""
    return torch.get_num_threads() if work >= SHARED_WORK else 1


@cache
def load_kernels(name: str) -> ctypes.CDLL | None:
    """Load `name`.c of this folder, compiling it if that was not done yet on such a processor.

    Returns:
        None where it cannot be compiled or loaded; a log line says why.
    """
    source = Path(__file__).with_name(f"{name}.c")
    compiler = _compiler()
    if compiler is None:
        logger.warning("There is no C compiler here, so decoding takes slower kernels. Install gcc or clang.")
        return None
    try:
        # One object for torch's OpenMP and ours: torch has loaded the library of that name already.
        return ctypes.CDLL(str(_built(compiler, source)))
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        logger.warning("%s does not compile or load here, so decoding takes slower kernels: %s", source, said)
        return None


def _built(compiler: str, source: Path) -> Path:
    folder = Path(platformdirs.user_cache_dir("eagleray")) / "kernels"
    path = folder / f"{source.stem}-{_key(compiler, source)}.so"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)

        def compile_to(aside: Path) -> None:
            command = [compiler, *FLAGS, str(source), "-o", str(aside)]
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S)

        write_atomically(path, compile_to)
    return path


def _compiler() -> str | None:
    usual = (sysconfig.get_config_var("CC") or "cc").split()[0]
    return next((found for name in (usual, "cc", "gcc", "clang") if (found := shutil.which(name))), None)


def _key(compiler: str, source: Path) -> str:
    """Of all that decides the machine code; a home folder may be shared by unlike processors."""
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True).stdout
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text(encoding="utf-8").splitlines() if cpu.exists() else []
    features = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    digest = hashlib.sha256()
    for part in (source.read_bytes(), version, " ".join(FLAGS).encode(), features.encode()):
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()[:16]

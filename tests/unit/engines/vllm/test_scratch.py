"""Folders of what is read once: they go with their owners, however those end."""

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from eagleray.engines.vllm.scratch import scratch_folder

OWNER = """
import sys, time
from eagleray.engines.vllm.scratch import scratch_folder
with scratch_folder() as folder:
    (folder / "left.safetensors").touch()
    print(folder, flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_a_folder_goes_with_its_owner_and_others_stay(temporary: Path) -> None:
    (temporary / "somebody").mkdir()
    with scratch_folder() as one, scratch_folder() as other:
        assert one != other
        assert one.is_dir()
        (one / "file").touch()
    assert [path.name for path in temporary.iterdir()] == ["somebody"]


def test_the_folder_of_a_killed_owner_goes_with_the_next_start_and_not_before(temporary: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    left = Path(process.stdout.readline().strip())
    with scratch_folder():
        assert (left / "left.safetensors").exists()
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert left.exists()
    with scratch_folder():
        assert not left.exists()

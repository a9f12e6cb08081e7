"""Real wheels of several versions, and the vLLM that is installed, have everything that we use of them."""

import importlib.util
import os
from pathlib import Path

import pytest

from eagleray.engines.installed import Installed
from jobs.doctor import examine

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


@pytest.mark.parametrize("version", ["0.5.10", "0.5.15", "0.5.20", "0.5.23"])
def test_a_version_of_sglang_has_what_is_used_of_it(version: str) -> None:
    spec = importlib.util.spec_from_file_location("sglang_source", Path(__file__).parent / "sglang_source.py")
    assert spec is not None
    assert spec.loader is not None
    source = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(source)
    engine = Installed.open_wheel(source.download(ROOT / ".cache" / "wheels", version))
    assert engine.version == version
    assert [finding.message for finding in examine(engine) if not finding.ok] == []


def test_the_installed_vllm_has_what_is_used_of_it() -> None:
    engine = Installed.find(Path(os.environ.get("VLLM_ENV", ".venv-vllm")), "vllm")
    assert [finding.message for finding in examine(engine) if not finding.ok] == []

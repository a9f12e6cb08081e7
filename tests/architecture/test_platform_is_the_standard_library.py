"""`platform/` is a source root. Were it a package, it would shadow Python's own `platform` module."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROBE = "import platform, eagleray; assert platform.system(), platform; print(platform.__file__)"


def test_platform_folder_has_no_init_file() -> None:
    assert (ROOT / "platform" / "eagleray").is_dir()
    assert not (ROOT / "platform" / "__init__.py").exists()


def test_platform_is_the_standard_library_under_pytest() -> None:
    import platform

    assert Path(platform.__file__ or "").parent == Path(os.__file__).parent
    assert platform.system()


def test_platform_is_the_standard_library_under_python_c_and_python_m() -> None:
    for arguments in (["-c", PROBE], ["-m", "tests.architecture.platform_probe"]):
        result = subprocess.run(
            [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stderr
        assert Path(result.stdout.strip()).parent == Path(os.__file__).parent

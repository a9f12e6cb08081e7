"""What a vLLM server is told."""

import json
from pathlib import Path
from typing import Any

import pytest

from eagleray.engines.served import PromptLookup, ServedDrafter
from eagleray.engines.vllm.capture import HiddenStates
from eagleray.engines.vllm.command import server_command, server_environment
from eagleray.engines.vllm.config import VllmConfig
from eagleray.errors import EngineError


def drafter_folder(folder: Path, algorithm: str, engines: dict[str, str] | None = None) -> Path:
    folder.mkdir()
    profile = {"algorithm": algorithm, "settings": {}, "engines": engines or {}}
    (folder / "speculation_profile.json").write_text(json.dumps(profile))
    return folder


def speculation(command: list[str]) -> dict[str, Any]:
    (argument,) = [word for word in command if word.startswith("--speculative-config=")]
    content: dict[str, Any] = json.loads(argument.partition("=")[2])
    return content


@pytest.mark.parametrize("algorithm", ["eagle3", "dflash", "medusa"])
def test_a_drafter_is_named_with_its_method_folder_and_depth(tmp_path: Path, algorithm: str) -> None:
    folder = drafter_folder(tmp_path / "drafter", algorithm)
    command = server_command(VllmConfig(), tmp_path, ServedDrafter(folder=folder, depth=5), 1234)
    assert speculation(command) == {"method": algorithm, "model": str(folder), "num_speculative_tokens": 5}
    assert "--per-request-spec-decode-metrics=detailed" in command
    assert {"--port=1234", "--dtype=float32", "--max-model-len=1024"} <= set(command)


def test_prompt_lookup_needs_no_folder(tmp_path: Path) -> None:
    command = server_command(VllmConfig(), tmp_path, PromptLookup(depth=4, min_ngram=2, max_ngram=5), 1)
    assert speculation(command) == {
        "method": "ngram",
        "num_speculative_tokens": 4,
        "prompt_lookup_min": 2,
        "prompt_lookup_max": 5,
    }


def test_layers_are_named_by_what_enters_them_and_the_last_state_is_always_written(tmp_path: Path) -> None:
    def told(*layers: int) -> list[str]:
        states = HiddenStates(layers=layers, num_layers=30, folder=tmp_path)
        return server_command(VllmConfig(), tmp_path, states, 1)

    def ids(*layers: int) -> list[int]:
        found = speculation(told(*layers))
        assert (found["method"], found["num_speculative_tokens"]) == ("extract_hidden_states", 1)
        layer_ids: list[int] = found["draft_model_config"]["hf_config"]["eagle_aux_hidden_state_layer_ids"]
        return layer_ids

    assert (ids(), ids(0, 14), ids(2, 29)) == ([30], [1, 15, 30], [3, 30])
    assert "--no-enable-prefix-caching" in told()
    (transfer,) = [word for word in told() if word.startswith("--kv-transfer-config=")]
    assert json.loads(transfer.partition("=")[2])["kv_connector_extra_config"] == {
        "shared_storage_path": str(tmp_path)
    }


def test_a_server_without_a_drafter_is_told_nothing_of_speculation(tmp_path: Path) -> None:
    command = server_command(VllmConfig(), tmp_path, None, 1)
    assert not [word for word in command if "spec" in word]


def test_an_algorithm_that_vllm_does_not_serve_is_refused(tmp_path: Path) -> None:
    folder = drafter_folder(tmp_path / "drafter", "prompt_lookup")
    with pytest.raises(EngineError, match="'prompt_lookup' is not one of eagle3, dflash"):
        server_command(VllmConfig(), tmp_path, ServedDrafter(folder=folder, depth=2), 1)


def test_a_drafter_whose_profile_says_that_vllm_cannot_run_it_is_refused_with_the_reason(
    tmp_path: Path,
) -> None:
    folder = drafter_folder(tmp_path / "drafter", "medusa", {"vllm": "not served: it refuses its own map"})
    with pytest.raises(EngineError, match="not served: it refuses its own map"):
        server_command(VllmConfig(), tmp_path, ServedDrafter(folder=folder, depth=2), 1)


def test_threads_are_bound_to_no_core_and_other_environments_are_not_seen() -> None:
    variables = server_environment(VllmConfig(threads=1))
    assert (variables["OMP_NUM_THREADS"], variables["VLLM_CPU_OMP_THREADS_BIND"]) == ("1", "nobind")
    assert [path.name for path in Path(variables["PYTHONPATH"]).glob("*.py")] == [
        "__init__.py",
        "hidden_states_writer.py",
    ]
    assert "OMP_NUM_THREADS" not in server_environment(VllmConfig())

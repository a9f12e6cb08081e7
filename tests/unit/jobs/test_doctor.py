"""What a doctor says, and how it ends."""

from pathlib import Path

import pytest
import typer
from rich.console import Console

from eagleray.engines.drift import Finding
from eagleray.errors import EngineError
from jobs.doctor import _guarded, _look, _report


def test_one_thing_that_is_wrong_is_an_exit_code_and_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    findings = [
        Finding(subject="machine", ok=True, message="2 cores"),
        Finding(subject="vllm 9", ok=False, message="has no flag --dtype. Change it [bold]"),
    ]
    with pytest.raises(typer.Exit) as ended:
        _report(findings, Console(width=200))
    assert ended.value.exit_code == EngineError.exit_code
    told = capsys.readouterr()
    assert "WRONG vllm 9: has no flag --dtype. Change it [bold]" in told.out
    assert "1 things are wrong" in told.err


def test_nothing_wrong_ends_quietly(capsys: pytest.CaptureFixture[str]) -> None:
    _report([Finding(subject="machine", ok=True, message="2 cores")], Console())
    assert capsys.readouterr().err == ""


def test_an_error_that_a_person_can_mend_is_a_finding() -> None:
    def look():
        raise EngineError("There is no vllm here.")

    (finding,) = _guarded("vllm", look)
    assert (finding.subject, finding.ok, finding.message) == ("vllm", False, "There is no vllm here.")


def test_machine_ray_environments_and_drafters_are_all_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    findings = list(_look(tmp_path / "v", tmp_path / "s", [], [tmp_path / "drafter"], "embedded"))
    wrong = {finding.subject for finding in findings if not finding.ok} - {"memory"}
    assert wrong == {"vllm", "sglang", str(tmp_path / "drafter")}
    assert {"machine", "memory", "native engine", "ray"} <= {finding.subject for finding in findings}

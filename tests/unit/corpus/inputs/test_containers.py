"""Containers: the same rows come out of every file format, in a stream, and damage is named."""

import gzip
import io
import json
import lzma
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagleray.corpus.inputs.base import BadRow, Row
from eagleray.corpus.inputs.json_array import JsonArray
from eagleray.corpus.inputs.opening import container_suffix, expand
from eagleray.corpus.prompt import Prompt, Reject
from eagleray.corpus.prompt_files import read_prompts
from eagleray.errors import DataError

ROWS = [{"prompt": "one"}, {"messages": [{"role": "user", "content": "two"}]}, {"prompt": "three \u65e5"}]


def _texts(path: Path | str) -> list[str]:
    found = read_prompts(path, "c", "l")
    return [
        item.messages[-1].content if isinstance(item, Prompt) else f"reject: {item.reason}" for item in found
    ]


def _lines() -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS).encode()


def _compress(path: Path, content: bytes) -> bytes:
    """The content as the ending of the file says."""
    if path.suffix == ".xz":
        return lzma.compress(content)
    codec = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4"}.get(path.suffix)
    if codec is None:
        return content
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(content)
    return sink.getvalue().to_pybytes()


COMPRESSED = ["a.jsonl.gz", "a.ndjson.zst", "a.jsonl.bz2", "a.jsonl.xz", "a.jsonl.lz4"]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "b.json", "a.json.gz", *COMPRESSED])
def test_every_container_gives_the_same_rows(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    array = json.dumps(ROWS, indent=2, ensure_ascii=False).encode()
    content = array if ".json" in name and name[0] == "a" and "jsonl" not in name else _lines()
    path.write_bytes(_compress(path, content))
    assert _texts(path) == ["one", "two", "three \u65e5"]


@pytest.mark.parametrize("name", COMPRESSED)
def test_compressed_files_that_were_joined_are_read_to_the_end(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(_compress(path, _lines()) * 2)
    assert len(_texts(path)) == 2 * len(ROWS)


def test_parquet_gives_its_rows_and_leaves_absent_columns_out(tmp_path: Path) -> None:
    pq.write_table(
        pa.Table.from_pylist([{**dict.fromkeys(("prompt", "messages")), **row} for row in ROWS]),
        tmp_path / "a.parquet",
    )
    assert _texts(tmp_path / "a.parquet") == ["one", "two", "three \u65e5"]


def test_origins_count_lines_of_text_and_rows_of_tables(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('\n{"prompt": "x"}\n')
    pq.write_table(pa.Table.from_pylist([{"prompt": "x"}]), tmp_path / "b.parquet")
    for name, number in (("a.jsonl", 2), ("b.parquet", 1)):
        (item,) = read_prompts(tmp_path / name, "c", "l")
        assert isinstance(item, Prompt)
        assert item.source == f"{tmp_path / name}:{number}"


def test_a_glob_reads_all_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name in ("b.jsonl", "deep/a.jsonl", "c.txt.gz"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        content = json.dumps({"prompt": name}).encode()
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    assert _texts(f"{tmp_path}/**/*.jsonl") == ["b.jsonl", "deep/a.jsonl"]
    assert _texts(f"{tmp_path}/*") == ["b.jsonl", "c.txt.gz"]
    with pytest.raises(DataError, match="No prompts file matches"):
        expand(f"{tmp_path}/*.parquet")


def test_storage_addresses_and_their_globs_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(_lines())
    pq.write_table(pa.Table.from_pylist([{"prompt": "x"}]), tmp_path / "b.parquet")
    assert _texts(f"file://{tmp_path}/a.jsonl")[0] == "one"
    assert _texts(f"file://{tmp_path}/*.parquet") == ["x"]
    assert expand(f"file://{tmp_path}/?.*") == [f"file://{tmp_path}/a.jsonl", f"file://{tmp_path}/b.parquet"]


@pytest.mark.parametrize("name", [*COMPRESSED, "a.json", "a.parquet"])
def test_a_file_that_breaks_off_is_an_error_not_a_shorter_file(tmp_path: Path, name: str) -> None:
    rows = [{"prompt": f"{number} {hash(number)}" * 5} for number in range(400)]
    path = tmp_path / name
    if name.endswith("parquet"):
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        text = json.dumps(rows) if name == "a.json" else "\n".join(map(json.dumps, rows))
        path.write_bytes(_compress(path, text.encode()))
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(DataError, match=name.replace(".", r"\.")):
        _texts(path)


def test_an_unknown_ending_lists_the_known_ones(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("prompt\nx\n")
    with pytest.raises(DataError, match=r"ends in \.csv; expected one of \.jsonl.*\.parquet"):
        _texts(tmp_path / "a.csv")
    assert container_suffix("A.JSONL.GZ") == ".jsonl"


def test_a_column_that_is_null_in_the_first_file_is_a_list_in_the_second(tmp_path: Path) -> None:
    """S5: both files in both orders; arguments are text everywhere."""
    plain = [
        {"messages": [{"role": "user", "content": f"q{n}", "tool_calls": None}], "system": None}
        for n in range(50)
    ]
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    turns = [
        {"role": "user", "content": "go", "tool_calls": None},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "1", "tool_calls": None},
    ]
    nested = {**call, "function": {"name": "f", "arguments": {"a": 1, "b": None}}}
    as_object = [{**turn, "tool_calls": [nested]} if turn["tool_calls"] else turn for turn in turns]
    for order in ("abc", "cab"):
        folder = tmp_path / order
        folder.mkdir()
        tables = (plain, [{"messages": turns, "system": "s"}], [{"messages": as_object, "system": "s"}])
        for letter, rows in zip(order, tables, strict=True):
            pq.write_table(pa.Table.from_pylist(rows), folder / f"{letter}.parquet")
        items = list(read_prompts(f"{folder}/*.parquet", "c", "l"))
        prompts = [item for item in items if isinstance(item, Prompt)]
        assert len(prompts) == 52
        calls = [call for prompt in prompts for turn in prompt.messages for call in turn.tool_calls]
        assert [json.loads(call.arguments) for call in calls] == [{"a": 1}] * 2
        assert {prompt.messages[0].role for prompt in prompts if len(prompt.messages) > 1} == {"system"}


def test_reading_takes_the_memory_of_a_few_rows(tmp_path: Path) -> None:
    row = json.dumps({"prompt": "word " * 200}) + "\n"
    small, large = tmp_path / "a.jsonl.gz", tmp_path / "b.jsonl.gz"
    small.write_bytes(gzip.compress(row.encode() * 500))
    large.write_bytes(gzip.compress(row.encode() * 5000))

    def peak_bytes(path: Path) -> int:
        tracemalloc.start()
        assert sum(isinstance(item, Prompt) for item in read_prompts(path, "c", "l")) >= 500
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    peak_bytes(small)
    assert peak_bytes(large) < 1.1 * peak_bytes(small) + 100_000


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(rows=st.lists(JSON, max_size=8), chunk=st.integers(1, 40), indent=st.none() | st.integers(0, 2))
@settings(max_examples=80)
def test_a_json_array_is_the_same_however_it_arrives(rows: list[Any], chunk: int, indent: int | None) -> None:
    class Drip(io.RawIOBase):
        """Gives a few bytes at a time, so that elements and characters are torn."""

        def __init__(self, content: bytes):
            self.content = io.BytesIO(content)

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            piece = self.content.read(min(chunk, len(buffer)))
            buffer[: len(piece)] = piece
            return len(piece)

    stream = io.BufferedReader(
        Drip(json.dumps(rows, indent=indent, ensure_ascii=False).encode("utf-8", "replace")), 8
    )
    found: list[tuple[int, Row | BadRow]] = list(JsonArray().rows(stream))
    assert [number for number, _ in found] == list(range(1, len(rows) + 1))
    for (_, row), expected in zip(found, rows, strict=True):
        if isinstance(expected, dict):
            assert row == json.loads(json.dumps(expected).encode("utf-8", "replace"))
        else:
            assert isinstance(row, BadRow)


def test_rejects_and_prompts_are_told_apart_in_one_stream(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[{"prompt": "x"}, 7, {"prompt": ""}]')
    kinds = [type(item) for item in read_prompts(tmp_path / "a.json", "c", "l")]
    assert kinds == [Prompt, Reject, Reject]

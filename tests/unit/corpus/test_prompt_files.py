import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagleray.corpus.prompt import Message, Prompt, Reject, ToolCall, normalise, user_prompt
from eagleray.corpus.prompt_files import read_prompts
from eagleray.corpus.prompt_table import write_table
from eagleray.errors import DataError


def _write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _read(
    path: Path | str, category: str = "chat", licence: str = "MIT"
) -> tuple[list[Prompt], list[Reject]]:
    items = list(read_prompts(path, category, licence))
    return (
        [item for item in items if isinstance(item, Prompt)],
        [item for item in items if isinstance(item, Reject)],
    )


def _reasons(path: Path) -> dict[int, str]:
    return {int(reject.origin.rpartition(":")[2]): reject.reason for reject in _read(path)[1]}


def test_both_row_forms_give_the_same_prompt(tmp_path: Path) -> None:
    plain = _read(_write(tmp_path / "a.jsonl", '{"prompt": "Hi"}'))[0][0]
    chat = _write(tmp_path / "b.jsonl", '{"messages": [{"role": "user", "content": "Hi"}]}')
    assert _read(chat)[0][0].prompt_id == plain.prompt_id
    assert (plain.category, plain.licence, plain.source) == ("chat", "MIT", f"{tmp_path / 'a.jsonl'}:1")


def test_an_old_answer_is_kept_apart_and_null_content_is_empty_text(tmp_path: Path) -> None:
    turns = [
        {"role": "system", "content": None},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."},
    ]
    path = _write(tmp_path / "a.jsonl", json.dumps({"messages": turns}))
    prompts, rejects = _read(path)
    assert rejects == []
    assert prompts[0].messages == (Message("system", ""), Message("user", "Hi"))
    assert prompts[0].given == (Message("assistant", "Hello."),)


def test_each_bad_row_is_named_by_its_line_and_reason(tmp_path: Path) -> None:
    path = _write(
        tmp_path / "a.jsonl",
        '{"prompt": "good"}',
        "{not json",
        '["a list"]',
        '{"prompt": ""}',
        "",
        '{"text": "a"}',
        '{"messages": [{"role": "user", "content": 7}]}',
        '{"messages": [{"content": "who speaks?"}]}',
        '{"messages": [{"role": "system", "content": "Be terse."}]}',
        '{"messages": [{"role": "assistant", "content": "Only an answer."}]}',
        '{"prompt": "lone \\ud83d surrogate"}',
        '{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]}',
        '{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [{}]}]}',
        '{"prompt": "also good", "category": 3}',
    )
    reasons = _reasons(path)
    assert sorted(reasons) == [2, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14]
    assert "not JSON" in reasons[2]
    assert "list" in reasons[3]
    assert "empty" in reasons[4]
    assert "none of `request`, `messages` or `conversations`, `prompt`" in reasons[6]
    assert "content of type int" in reasons[7]
    assert "role None" in reasons[8]
    assert "only system turns" in reasons[9]
    assert "empty or missing" in reasons[10]
    assert "surrogate" in reasons[11]
    assert "messages[0] has a content part of type 'image_url'" in reasons[12]
    assert "tool call without a function name" in reasons[13]
    assert "category" in reasons[14]


def test_a_line_that_is_not_utf8_is_a_reject_and_the_rest_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(
        b'\xef\xbb\xbf{"prompt": "one"}\r\n{"prompt": "\xff"}\n{"prompt": "two\xe2\x80\xa8lines"}'
    )
    prompts, rejects = _read(path)
    assert [prompt.messages[0].content for prompt in prompts] == ["one", "two\u2028lines"]
    assert [reject.origin for reject in rejects] == [f"{path}:2"]


def test_a_missing_file_names_its_path(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere\.jsonl"):
        _read(tmp_path / "nowhere.jsonl")


def test_a_file_without_one_prompt_is_an_error_that_gives_the_first_reason(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.jsonl:1: not JSON"):
        _read(_write(tmp_path / "a.jsonl", "oops"))


def test_written_prompts_read_back_equal(tmp_path: Path) -> None:
    prompts = [
        user_prompt(text, category="c", source="s", licence="l")
        for text in ("a", 'quote " and \n', "e\u0301")
    ]
    call = Message("assistant", "", "Which?", (ToolCall("get_weather", '{"city": "Oslo"}', "c1"),))
    result = Message("tool", "4", name="get_weather", tool_call_id="c1")
    prompts.append(
        Prompt(
            messages=(Message("user", "Weather?"), call, result),
            given=(Message("assistant", "It is"),),
            given_finish_reason="length",
            tools='[{"type": "function"}]',
            category="c",
            source="s",
            licence="l",
        )
    )
    table = write_table(tmp_path / "deep" / "prompts.jsonl", prompts)
    assert list(table.iterate()) == prompts
    assert _read(tmp_path / "deep" / "prompts.jsonl", "other", "other") == (prompts, [])
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["prompts.jsonl"]


ROWS = st.one_of(
    st.text(st.characters(exclude_characters="\n", codec="utf-8"), min_size=1),
    st.builds(lambda text: json.dumps({"prompt": text}), st.text()),
    st.builds(
        lambda turns: json.dumps({"messages": turns}),
        st.lists(st.fixed_dictionaries({"role": st.text(max_size=4), "content": st.none() | st.text()})),
    ),
    st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=2)).map(
        json.dumps
    ),
)


@given(rows=st.lists(ROWS, max_size=12))
def test_good_rows_and_rejects_add_up_to_the_rows_of_the_file(
    tmp_path_factory: pytest.TempPathFactory, rows: list[str]
) -> None:
    anchor = '{"prompt": "there is always one good row"}'
    path = tmp_path_factory.mktemp("rows") / "a.jsonl"
    path.write_bytes("\n".join([anchor, *rows]).encode())
    prompts, rejects = _read(path)
    assert len(prompts) + len(rejects) == 1 + sum(bool(row.encode().strip()) for row in rows)


def test_normalise_folds_case_width_and_spacing() -> None:
    assert normalise("  \uff21dd\tTWO\n numbers ") == "add two numbers"

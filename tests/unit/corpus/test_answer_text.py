"""Text while ids come: the same for any split of the ids, never half a character, never part of a stop."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagleray.corpus.answer_text import AnswerText, StopScanner

EMOJI = "Go \U0001f469\u200d\U0001f680!"
SPELLINGS = [EMOJI, "e\u0301a", "\U0001f3f3\ufe0f\u200d\U0001f308", "\u65e5\u672c\u8a9e", ""]


def decode(ids):
    """Every id is a byte."""
    return bytes(ids).decode("utf-8", errors="replace")


def split(items, sizes):
    start = 0
    for size in sizes:
        yield items[start : start + size]
        start += size
    yield items[start:]


def parts_of(reader, ids, sizes):
    parts = [reader.push(part) for part in split(ids, sizes)]
    return [*parts, reader.finish()]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("text", SPELLINGS)
def test_no_part_shows_half_a_character(text: str, size: int) -> None:
    parts = parts_of(AnswerText(decode, b"?"), text.encode(), [size] * 40)
    assert "".join(parts) == text
    assert "\ufffd" not in "".join(parts)


@given(st.text(max_size=30), st.lists(st.integers(1, 7), max_size=30))
def test_parts_joined_are_the_text_however_the_ids_came(text: str, sizes: list[int]) -> None:
    assert "".join(parts_of(AnswerText(decode), text.encode(), sizes)) == text


def test_an_answer_cut_within_a_character_ends_as_its_whole_text_does() -> None:
    ids = EMOJI.encode()[:5]
    parts = parts_of(AnswerText(decode), ids, [1, 1, 1, 1, 1])
    assert parts == ["G", "o", " ", "", "", "", "\ufffd"]
    assert "".join(parts) == decode(ids)


EMOJI_IDS = (6044, 15107, 235, 119, 321, 231, 10813, 244, 218, 17)
"""`EMOJI` as the embedded target spells it, in pieces of bytes."""


@pytest.mark.parametrize("block", [1, 2, 3, 4, 8])
def test_the_pieces_of_a_real_tokenizer_come_as_whole_characters(open_chat, block: int) -> None:
    chat = open_chat("smollm2")
    parts = parts_of(AnswerText(chat.show, (198,)), EMOJI_IDS, [block] * 10)
    assert "".join(parts) == EMOJI
    assert "\ufffd" not in "".join(parts)
    assert chat.show((*EMOJI_IDS, 2)) == EMOJI, "control tokens are no text"


def test_bytes_that_never_become_a_character_do_not_hold_the_rest_back() -> None:
    reader = AnswerText(decode)
    assert reader.push(b"\xff") == ""
    assert reader.push(b"ab") == "\ufffdab"
    assert len("".join(reader.push(b"\xff") for _ in range(100))) >= 64


def test_a_space_that_the_decoder_drops_at_the_front_is_kept_behind_a_prompt() -> None:
    words = ["\u2581one", "\u2581two"]

    def sentence(ids):
        return "".join(words[token] for token in ids).replace("\u2581", " ").removeprefix(" ")

    assert "".join(parts_of(AnswerText(sentence, [0]), [1, 1], [1])) == " two two"
    assert "".join(parts_of(AnswerText(sentence), [1, 1], [1])) == "two two"


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize(
    ("stops", "shown"),
    [
        (["END"], "one two "),
        (["o E"], "one tw"),
        (["three", "END"], "one two "),
        (["END three", "D"], "one two EN"),
        (["ND", "END"], "one two "),
        (["seven"], "one two END three"),
    ],
)
def test_text_ends_before_the_stop_string_that_is_complete_first(stops, shown, size) -> None:
    reader = AnswerText(decode, stop_strings=stops)
    assert "".join(parts_of(reader, b"one two END three", [size] * 20)) == shown
    assert (reader.stopped_by in stops) is (shown != "one two END three")


def test_what_may_become_a_stop_string_is_held_until_it_does_not() -> None:
    scanner = StopScanner(["\n\nUser:"])
    assert [scanner.push(part) for part in ("hi\n", "\nUs", "ual", "\n\nUser", ":x")] == [
        "hi", "", "\n\nUsual", "", "",
    ]  # fmt: skip
    assert (scanner.found, scanner.push("more"), scanner.finish()) == ("\n\nUser:", "", "")


@given(st.text("ab", max_size=24), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.data())
def test_a_stop_is_found_wherever_the_text_is_split(text: str, stops: list[str], data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 5), max_size=24))
    whole, pieces = StopScanner(stops), StopScanner(stops)
    at_once = whole.push(text) + whole.finish()
    in_parts = "".join(pieces.push(part) for part in split(text, sizes)) + pieces.finish()
    assert (at_once, whole.found) == (in_parts, pieces.found)
    assert not any(stop in at_once for stop in stops)

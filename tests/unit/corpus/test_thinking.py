"""Thoughts are counted in ids, whether their marks are one token or many."""

from collections.abc import Sequence

import pytest

from eagleray.corpus.thinking import thinking_tokens


def _decode(ids: Sequence[int]) -> str:
    return "".join(map(chr, ids))


@pytest.mark.parametrize(
    ("answer", "request_text", "thoughts"),
    [
        ("Paris.", "ask", ""),
        ("<think>a</think>Paris.", "ask", "<think>a</think>"),
        ("\n<think>\na\n</think>\n\nParis.", "ask", "\n<think>\na\n</think>\n\n"),
        ("a</think> Paris.", "ask<think>\n", "a</think> "),
        ("a</think> Paris.", "ask", ""),
        ("<think>never ends", "ask", "<think>never ends"),
        ("<think>a</think>\n", "ask", "<think>a</think>\n"),
        ("Say </think> aloud.", "ask", ""),
        ("", "ask", ""),
        ("", "ask<think>", ""),
    ],
)
def test_thoughts_end_with_their_mark_and_the_space_after_it(
    answer: str, request_text: str, thoughts: str
) -> None:
    assert thinking_tokens([ord(letter) for letter in answer], request_text, _decode) == len(thoughts)

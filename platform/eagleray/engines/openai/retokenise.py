"""Ids for answers of servers that give text alone: tokenised again, and checked against what was counted.

A text has one usual spelling in ids, but a target may emit another. Which it emitted can not be seen,
so an answer counts as the same only if the server's own count of tokens, and the text of each where it
offers them, say nothing else.
"""

from collections.abc import Sequence

from eagleray.corpus.chat import ChatTemplate
from eagleray.corpus.prompt import Message
from eagleray.engines.openai.dialects import ServerAnswer

_SPACES = " \u2581\u0120"
"""How tokenizers show the space before a word."""
_PART_OF_CHARACTER = ("\ufffd", "bytes:")


class Retokeniser:
    """Tokenises the answers of one target again."""

    def __init__(self, chat: ChatTemplate, stop_ids: Sequence[int]):
        self._chat = chat
        self._stop_ids = frozenset(stop_ids)
        closing = chat.encode(chat.closing([Message("user", "?")]))
        self._end_id = next(token_id for token_id in closing if chat.is_control(token_id))

    def ids(self, prompt_ids: tuple[int, ...], answer: ServerAnswer) -> tuple[tuple[int, ...], bool]:
        """Return the ids of an answer, and whether everything the server told agrees with them.

        An answer that stopped gets the end-of-turn token, which servers leave out of the text; one that
        was cut gets none.
        """
        ids = self._chat.encode_after(self._chat.decode(prompt_ids), prompt_ids, answer.text)
        spelled = self._chat.decode_after(prompt_ids, ids) == answer.text
        stopped = answer.finish_reason == "stop"
        if stopped and (not ids or ids[-1] not in self._stop_ids):
            ids += (self._end_id,)
        inner = ids[:-1] if stopped else ids
        return ids, spelled and self._stop_ids.isdisjoint(inner) and self._is_confirmed(inner, answer)

    def _is_confirmed(self, inner: Sequence[int], answer: ServerAnswer) -> bool:
        """Whether count and pieces are those of the ids before the end, with or without the end counted."""
        counts = {len(inner), len(inner) + (answer.finish_reason == "stop")}
        if answer.completion_tokens is None and answer.pieces is None:
            return False
        if answer.completion_tokens is not None and answer.completion_tokens not in counts:
            return False
        if answer.pieces is None:
            return True
        pieces = (self._chat.decode([token_id]) for token_id in inner)
        return len(answer.pieces) in counts and all(map(_is_same, pieces, answer.pieces))


def _is_same(piece: str, told: str) -> bool:
    unseen = any(mark in text for mark in _PART_OF_CHARACTER for text in (piece, told))
    return unseen or piece.strip(_SPACES) == told.strip(_SPACES)

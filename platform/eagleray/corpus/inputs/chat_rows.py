"""Rows that hold a list of turns: `messages`, `conversations`, or `prompt` with a `completion`."""

from eagleray.corpus.inputs.base import Conversation, Row
from eagleray.corpus.inputs.turns import read_tools, read_turns, with_system


class ChatRows:
    """A list of turns, with an optional `system` text and `tools` beside it.

    Rows of preference and instruction sets often repeat the first turn under `prompt`; the list is
    what they are made of.
    """

    keys = "`messages` or `conversations`"
    _LISTS = ("messages", "conversations", "conversation")

    def claims(self, row: Row) -> bool:
        return any(row.get(key) is not None for key in self._LISTS) or isinstance(row.get("prompt"), list)

    def read(self, row: Row) -> Conversation:
        key = next((key for key in self._LISTS if row.get(key) is not None), "prompt")
        messages = read_turns(row[key], key)
        if key == "prompt" and isinstance(row.get("completion"), list):
            messages += read_turns(row["completion"], "completion")
        return Conversation(
            messages=with_system(row.get("system"), messages),
            tools=read_tools(row.get("tools")),
            finish_reason="length" if row.get("finish_reason") == "length" else "stop",
        )

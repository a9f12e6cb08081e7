"""Rows that hold one text under `prompt`, perhaps with its answer under `completion` or `response`."""

from eagleray.corpus.inputs.base import Conversation, Row, RowError
from eagleray.corpus.inputs.turns import with_system
from eagleray.corpus.prompt import ASSISTANT, Message


class PlainRows:
    """One user turn."""

    keys = "`prompt`"

    def claims(self, row: Row) -> bool:
        return row.get("prompt") is not None

    def read(self, row: Row) -> Conversation:
        prompt, completion = row["prompt"], row.get("completion")
        if completion is None and isinstance(row.get("response"), str):
            completion = row["response"]
        for key, text in (("prompt", prompt), ("completion", completion)):
            if text is not None and not isinstance(text, str):
                raise RowError(f"`{key}` is {type(text).__name__}, expected text")
        answer = () if completion is None else (Message(ASSISTANT, completion),)
        return Conversation(messages=with_system(row.get("system"), (Message("user", prompt),)) + answer)

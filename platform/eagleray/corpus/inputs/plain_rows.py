"""Rows that hold one text under `prompt`, perhaps with its `completion`."""

from eagleray.corpus.inputs.base import Conversation, Row, RowError
from eagleray.corpus.prompt import ASSISTANT, Message


class PlainRows:
    """One user turn."""

    keys = "`prompt`"

    def claims(self, row: Row) -> bool:
        return row.get("prompt") is not None

    def read(self, row: Row) -> Conversation:
        prompt, completion, system = row["prompt"], row.get("completion"), row.get("system")
        for key, text in (("prompt", prompt), ("completion", completion), ("system", system)):
            if text is not None and not isinstance(text, str):
                raise RowError(f"`{key}` is {type(text).__name__}, expected text")
        opening = (Message("system", system),) if system else ()
        answer = (Message(ASSISTANT, completion),) if completion is not None else ()
        return Conversation(messages=(*opening, Message("user", prompt), *answer))

"""Rows of benchmarks in the layouts of their publishers.

Spec-Bench and SPEED-Bench: `turns`, a list of a user's texts, the later ones after answers. GSM8K: `question`
and `answer`. HumanEval: `prompt`, the head of a function, with its `entry_point`.

SPEED-Bench is published with placeholders where licences forbid giving the text; a run over those would
measure one sentence again and again, so such a row is refused. The first turn is asked: what the later ones
ask depends on how a target answers.
"""

import re

from eagleray.corpus.inputs.base import Conversation, Row, RowError
from eagleray.corpus.prompt import ASSISTANT, Message

PLACEHOLDER = "full benchmark data should be fetched"
UNFILLED = re.compile(r"\{(article|context|document|passage|question|text)\}")


class BenchmarkRows:
    """A question of one or several turns."""

    keys = "`turns`"

    def claims(self, row: Row) -> bool:
        return row.get("turns") is not None

    def read(self, row: Row) -> Conversation:
        turns = row["turns"]
        if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) for turn in turns):
            raise RowError("`turns` is expected to be a list of texts, at least one")
        for turn in turns:
            if PLACEHOLDER in turn.casefold():
                raise RowError(
                    "`turns` holds the placeholder of a published benchmark, not its text; fetch the data "
                    "with the benchmark's own preparation first"
                )
            if unfilled := UNFILLED.search(turn):
                raise RowError(f"`turns` holds {unfilled.group()}, which was to be filled in")
        return Conversation(messages=(Message("user", turns[0]),))


class QuestionRows:
    """A question, perhaps with its answer."""

    keys = "`question`"

    def claims(self, row: Row) -> bool:
        return row.get("question") is not None

    def read(self, row: Row) -> Conversation:
        question, answer = row["question"], row.get("answer")
        if not isinstance(question, str):
            raise RowError(f"`question` is {type(question).__name__}, expected text")
        given = (Message(ASSISTANT, answer),) if isinstance(answer, str) else ()
        return Conversation(messages=(Message("user", question), *given))


class FunctionRows:
    """The head of a Python function that is to be completed. Its solution continues the head and is no answer
    of a chat, so it is not taken for one."""

    keys = "`prompt` with `entry_point`"

    def claims(self, row: Row) -> bool:
        return isinstance(row.get("entry_point"), str) and row.get("prompt") is not None

    def read(self, row: Row) -> Conversation:
        head = row["prompt"]
        if not isinstance(head, str):
            raise RowError(f"`prompt` is {type(head).__name__}, expected the head of a function")
        asked = f"Complete this Python function.\n\n```python\n{head.strip()}\n```"
        return Conversation(messages=(Message("user", asked),))

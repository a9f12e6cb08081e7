"""Rows of Spec-Bench and SPEED-Bench: `turns`, a list of a user's texts, the later ones after answers.

SPEED-Bench is published with placeholders where licences forbid giving the text; a run over those would
measure one sentence again and again, so such a row is refused. The first turn is asked: what the later ones
ask depends on how a target answers.
"""

import re

from eagleray.corpus.inputs.base import Conversation, Row, RowError
from eagleray.corpus.prompt import Message

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

"""Replay: the decode of an answer that the target has already emitted, without the target.

What a greedy target says after any prefix of its own answer is the answer itself, and so are the
features there. So a drafter can be walked through the answer exactly as an engine would: observe what
is committed, draft, keep the longest prefix that the answer agrees with, commit that and the token
after it. The cycles are those of the live loop, at the cost of the drafts alone.

Shapes: T positions of one sequence, Q newly committed positions of the longest row, L tapped layers,
D target width.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from eagleray.drafters.base import Committed, DraftSession, DraftSource
from eagleray.speculation.acceptance import Cycle


@dataclass(frozen=True, kw_only=True)
class EmittedAnswer:
    """An answer that the target emitted greedily, after the prompt it was asked with."""

    ids_T: Tensor
    """int64 ids of prompt and answer."""

    prompt_tokens: int
    """Tokens before the answer, at least 1; the answer has at least 1 too."""

    features_TLD: Tensor
    """Outputs of the layers that the drafter taps. Those of the last position are never read and may be
    missing."""

    final_TD: Tensor
    """Last hidden state after the target's final norm, at the same positions."""

    max_answer_tokens: int
    """The limit under which the answer was emitted: near it an engine drafts less."""


def replay(
    source: DraftSource, answers: Sequence[EmittedAnswer], depth: int, *, max_rows: int = 32
) -> list[tuple[Cycle, ...]]:
    """Decode the answers again at a draft depth.

    Args:
        max_rows: Answers decoded together; changes nothing but memory and speed.

    Returns:
        The cycles of each answer; none where the answer is a single token, which comes from prefill.
    """
    waiting = deque(_Replayed(answer) for answer in answers)
    replayed = list(waiting)
    longest = max((len(answer.ids_T) for answer in answers), default=0)
    session = source.open_session(max(1, min(max_rows, len(answers))), longest + depth)
    rows: list[_Replayed] = []
    while waiting or rows:
        admitted = len(rows)
        while waiting and len(rows) < max_rows:
            rows.append(waiting.popleft())
        _observe(session, rows[admitted:], admitted)
        _release(session, rows)
        if rows:
            _cycle(session, rows, depth)
            _release(session, rows)
            _observe(session, rows, 0)
    return [tuple(row.cycles) for row in replayed]


@dataclass(eq=False)
class _Replayed:
    """How far the replay of one answer has come."""

    answer: EmittedAnswer
    observed: int = 0
    """Positions shown to the drafter."""
    cycles: list[Cycle] = field(default_factory=list)

    def __post_init__(self) -> None:
        # Prefill commits the prompt and the first token of the answer.
        self.committed = self.answer.prompt_tokens + 1
        self.ids = self.answer.ids_T.tolist()

    @property
    def left(self) -> int:
        """Tokens of the answer that are not committed yet."""
        return len(self.ids) - self.committed

    def limit(self, depth: int) -> int:
        """Draft tokens that are judged: the bonus token takes the last place that is left."""
        room = self.answer.prompt_tokens + self.answer.max_answer_tokens - self.committed
        return min(depth, room - 1)

    def judge(self, draft: Sequence[int], limit: int) -> None:
        """Commit the prefix that the answer agrees with, and the token after it."""
        # A slot without a proposal holds a negative id, which ends the draft.
        drafted = next((slot for slot, token in enumerate(draft[:limit]) if token < 0), limit)
        ahead = self.ids[self.committed : self.committed + drafted]
        pairs = zip(draft, ahead, strict=False)
        accepted = next((slot for slot, (token, said) in enumerate(pairs) if token != said), len(ahead))
        delivered = min(accepted + 1, self.left)
        self.cycles.append(Cycle(drafted=drafted, accepted=accepted, delivered=delivered))
        self.committed += delivered


def _cycle(session: DraftSession, rows: Sequence[_Replayed], depth: int) -> None:
    limits = [row.limit(depth) for row in rows]
    drafts = session.draft(len(rows), depth).tolist() if max(limits) > 0 else [[]] * len(rows)
    for row, draft, limit in zip(rows, drafts, limits, strict=True):
        row.judge(draft, limit)


def _release(session: DraftSession, rows: list[_Replayed]) -> None:
    """Take finished rows out; the last one moves into the place of each."""
    for slot in reversed(range(len(rows))):
        if rows[slot].left > 0:
            continue
        last = len(rows) - 1
        if slot != last:
            rows[slot] = rows[last]
            session.move(last, slot)
        rows.pop()
        session.reset(last)


def _observe(session: DraftSession, rows: Sequence[_Replayed], first_row: int) -> None:
    """Show each row's newly committed positions: all but the newest, which the target has not run."""
    if not rows:
        return
    spans = [slice(row.observed, row.committed - 1) for row in rows]
    following = [slice(span.start + 1, span.stop + 1) for span in spans]
    answers = [row.answer for row in rows]
    device = answers[0].ids_T.device

    def pad(pieces: list[Tensor]) -> Tensor:
        return pad_sequence(pieces, batch_first=True)

    session.observe(
        Committed(
            rows_B=torch.arange(first_row, first_row + len(rows), device=device),
            features_BQLD=pad([a.features_TLD[span] for a, span in zip(answers, spans, strict=True)]),
            final_BQD=pad([a.final_TD[span] for a, span in zip(answers, spans, strict=True)]),
            next_ids_BQ=pad([a.ids_T[span] for a, span in zip(answers, following, strict=True)]),
            counts_B=torch.tensor([span.stop - span.start for span in spans], device=device),
        )
    )
    for row, span in zip(rows, spans, strict=True):
        row.observed = span.stop

"""From answered turns to training sequences: which ids are read together, and which are learnt.

A turn is what the target reads (the ids of a rendered request) and what is answered (ids that follow).
Spans come from these two and from nothing else: no text is searched, no mask is asked of a template.

A later turn continues the sequence of the turns before it only if its request begins with exactly
their ids, as it does for most templates. Where a template shows history in another way than it was
said (Qwen 3 drops old thoughts) or where a re-rendered text comes out in other pieces, the turn starts
a sequence of its own, so that every supervised token stands after the ids that a server would send.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from eagleray.corpus.config import SupervisionConfig
from eagleray.corpus.prompt import FinishReason


@dataclass(frozen=True, kw_only=True, slots=True)
class AnsweredTurn:
    """A request and its answer."""

    request_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    """The end-of-turn token, if the answer has one, is the last."""
    thinking_tokens: int = 0
    """Leading answer ids that are thoughts."""
    finish_reason: FinishReason = "stop"
    tail_ids: tuple[int, ...] = ()
    """What the template writes after the end of the turn."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingSequence:
    """Ids to train on at once."""

    input_ids: tuple[int, ...]
    supervised: tuple[tuple[int, int], ...]
    """Half-open spans, ascending and apart; never empty."""
    prompt_tokens: int
    answer_tokens: int
    finish_reason: FinishReason
    last_turn: int
    """Index of the turn whose ids end the sequence."""


def to_sequences(turns: Sequence[AnsweredTurn], config: SupervisionConfig) -> list[TrainingSequence]:
    """Join the turns of one conversation into as few sequences as their ids allow."""
    sequences = []
    for chain in _chains(turns):
        learnt = [index for index in chain if config.turns == "all" or index == len(turns) - 1]
        spans = tuple(span for index in learnt if (span := _learnt_span(turns[index], config))[0] < span[1])
        if spans:
            first, last = turns[chain[0]], turns[chain[-1]]
            sequences.append(
                TrainingSequence(
                    input_ids=last.request_ids + last.answer_ids + last.tail_ids,
                    supervised=spans,
                    prompt_tokens=len(first.request_ids),
                    answer_tokens=sum(len(turns[index].answer_ids) for index in chain),
                    finish_reason=last.finish_reason,
                    last_turn=chain[-1],
                )
            )
    return sequences


def _chains(turns: Sequence[AnsweredTurn]) -> list[list[int]]:
    """Group consecutive turns of which each request begins with all ids of the turn before."""
    chains: list[list[int]] = []
    said: tuple[int, ...] = ()
    for index, turn in enumerate(turns):
        if chains and turn.request_ids[: len(said)] == said:
            chains[-1].append(index)
        else:
            chains.append([index])
        said = turn.request_ids + turn.answer_ids
    return chains


def _learnt_span(turn: AnsweredTurn, config: SupervisionConfig) -> tuple[int, int]:
    start = len(turn.request_ids)
    skipped = 0 if config.thinking else turn.thinking_tokens
    return start + skipped, start + len(turn.answer_ids)

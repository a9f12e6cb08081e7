"""Where answers come from: the target that is run now, or the input rows.

Both give the same thing, training sequences per prompt, so that what follows need not know which it was.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from eagleray.corpus.chat import ChatTemplate, RenderError, reject_of
from eagleray.corpus.config import SupervisionConfig
from eagleray.corpus.given_answers import given_turns
from eagleray.corpus.prompt import AnswerOrigin, Prompt, Reject
from eagleray.corpus.supervision import TrainingSequence, to_sequences
from eagleray.distillation.plan import ShardJob
from eagleray.engines.base import CapturedFeatures

NOTHING_TO_LEARN = "no supervised tokens"


@dataclass(frozen=True, kw_only=True)
class AnsweredSequence:
    """A sequence to train on."""

    sequence: TrainingSequence
    origin: AnswerOrigin
    draw: int = 0
    """Which of the answers to its prompt it is of; above 0 only where several are sampled."""
    captured: CapturedFeatures | None = None
    """The features of it, if they were asked for."""


@dataclass(frozen=True, kw_only=True)
class AnsweredPrompt:
    """What one prompt gives to train on."""

    prompt: Prompt
    sequences: tuple[AnsweredSequence, ...]
    """At least one."""


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Every prompt is in one of the two."""

    answered: tuple[AnsweredPrompt, ...]
    rejects: tuple[Reject, ...]


class AnswerSource(Protocol):
    """Answers prompts."""

    chat: ChatTemplate

    def answer(self, jobs: Iterable[ShardJob]) -> Iterator[tuple[ShardJob, Answers]]:
        """Answer every prompt of every job, or say why not.

        Jobs are taken as there is room, and each is given back once its last prompt has its answer.
        """
        ...


class GivenAnswers:
    """Answers that the input rows came with; no engine runs."""

    def __init__(self, chat: ChatTemplate, supervision: SupervisionConfig, max_tokens: int):
        self.chat = chat
        self.supervision = supervision
        self.max_tokens = max_tokens

    def answer(self, jobs: Iterable[ShardJob]) -> Iterator[tuple[ShardJob, Answers]]:
        """Encode the answers of job after job."""
        for job in jobs:
            yield job, self.encode(job.prompts)

    def encode(self, prompts: Iterable[Prompt]) -> Answers:
        """Encode the answer of every prompt."""
        answered: list[AnsweredPrompt] = []
        failed: list[tuple[Prompt, str]] = []
        for prompt in prompts:
            try:
                sequences = self._sequences(prompt)
            except RenderError as error:
                failed.append((prompt, str(error)))
                continue
            if sequences:
                answered.append(AnsweredPrompt(prompt=prompt, sequences=sequences))
            else:
                failed.append((prompt, NOTHING_TO_LEARN))
        return sort_out(answered, failed)

    def _sequences(self, prompt: Prompt) -> tuple[AnsweredSequence, ...]:
        sequences = to_sequences(given_turns(self.chat, prompt), self.supervision)
        longest = max((len(sequence.input_ids) for sequence in sequences), default=0)
        if longest > self.max_tokens:
            raise RenderError(f"the conversation has {longest} tokens; at most {self.max_tokens} fit")
        return tuple(AnsweredSequence(sequence=sequence, origin="given") for sequence in sequences)


def sort_out(answered: Sequence[AnsweredPrompt], failed: Sequence[tuple[Prompt, str]]) -> Answers:
    """Put together what came of the prompts of a shard."""
    return Answers(
        answered=tuple(answered),
        rejects=tuple(reject_of(prompt, reason) for prompt, reason in failed),
    )

"""Where answers come from: the target that is run now, or the input rows.

Both give the same thing, training sequences per prompt, so that what follows need not know which it was.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from eagleray.corpus.chat import ChatTemplate, RenderError, reject_of
from eagleray.corpus.config import SupervisionConfig
from eagleray.corpus.given_answers import given_turns
from eagleray.corpus.manifest import ContentKey
from eagleray.corpus.prompt import AnswerOrigin, Prompt, Reject
from eagleray.corpus.supervision import TrainingSequence, to_sequences
from eagleray.distillation.dialogue import Dialogue
from eagleray.distillation.plan import ShardJob
from eagleray.engines.base import CapturedFeatures, Engine, GenerationRequest

NOTHING_TO_LEARN = "no supervised tokens"


@dataclass(frozen=True, kw_only=True)
class AnsweredPrompt:
    """What one prompt gives to train on."""

    prompt: Prompt
    sequences: tuple[TrainingSequence, ...]
    captured: tuple[CapturedFeatures | None, ...]
    """Beside each sequence, the features of it, if they were asked for."""


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Every prompt is in one of the two."""

    answered: tuple[AnsweredPrompt, ...]
    rejects: tuple[Reject, ...]


class AnswerSource(Protocol):
    """Answers prompts."""

    origin: AnswerOrigin
    chat: ChatTemplate

    def answer(self, jobs: Iterable[ShardJob]) -> Iterator[tuple[ShardJob, Answers]]:
        """Answer every prompt of every job, or say why not.

        Jobs are taken as there is room, and each is given back once its last prompt has its answer.
        """
        ...


class TargetAnswers:
    """Answers of the target, turn by turn: every round asks the next turn of all dialogues at once."""

    origin: AnswerOrigin = "target"

    def __init__(
        self,
        engine: Engine,
        chat: ChatTemplate,
        key: ContentKey,
        max_prompt_tokens: int,
        capture_layers: tuple[int, ...] | None = None,
    ):
        self.engine = engine
        self.chat = chat
        self.key = key
        self.max_prompt_tokens = max_prompt_tokens
        self.capture_layers = capture_layers

    def answer(self, jobs: Iterable[ShardJob]) -> Iterator[tuple[ShardJob, Answers]]:
        """Answer job after job. A turn that cannot be asked ends its dialogue, never that of others."""
        for job in jobs:
            yield job, self._answer(job.prompts)

    def _answer(self, prompts: Sequence[Prompt]) -> Answers:
        dialogues = [Dialogue(prompt, self.chat, self.max_prompt_tokens) for prompt in prompts]
        while asking := [dialogue for dialogue in dialogues if dialogue.ask()]:
            run = self.engine.generate(
                [self._request(dialogue) for dialogue in asking],
                capture_layers=self.capture_layers,
            )
            for dialogue, generation in zip(asking, run.generations, strict=True):
                dialogue.take(generation)
        answered = [self._learn(dialogue) for dialogue in dialogues if dialogue.turns]
        failed = [(dialogue.prompt, dialogue.failure) for dialogue in dialogues if not dialogue.turns]
        return _sort_out(answered, failed)

    def _request(self, dialogue: Dialogue) -> GenerationRequest:
        return GenerationRequest(
            request_id=f"{dialogue.prompt.prompt_id}-{len(dialogue.turns)}",
            prompt_ids=dialogue.request_ids,
            max_new_tokens=self.key.max_new_tokens,
        )

    def _learn(self, dialogue: Dialogue) -> AnsweredPrompt:
        sequences = to_sequences(dialogue.turns, self.key.supervision)
        return AnsweredPrompt(
            prompt=dialogue.prompt,
            sequences=tuple(sequences),
            # A sequence ends with the answer of its last turn, whose generation has seen all of it.
            captured=tuple(dialogue.captured[sequence.last_turn] for sequence in sequences),
        )


class GivenAnswers:
    """Answers that the input rows came with; no engine runs."""

    origin: AnswerOrigin = "given"

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
            answered.append(
                AnsweredPrompt(prompt=prompt, sequences=sequences, captured=(None,) * len(sequences))
            )
        return _sort_out(answered, failed)

    def _sequences(self, prompt: Prompt) -> tuple[TrainingSequence, ...]:
        sequences = to_sequences(given_turns(self.chat, prompt), self.supervision)
        longest = max((len(sequence.input_ids) for sequence in sequences), default=0)
        if longest > self.max_tokens:
            raise RenderError(f"the conversation has {longest} tokens; at most {self.max_tokens} fit")
        return tuple(sequences)


def _sort_out(answered: Sequence[AnsweredPrompt], failed: Sequence[tuple[Prompt, str]]) -> Answers:
    failed = [*failed, *((one.prompt, NOTHING_TO_LEARN) for one in answered if not one.sequences)]
    return Answers(
        answered=tuple(one for one in answered if one.sequences),
        rejects=tuple(reject_of(prompt, reason) for prompt, reason in failed),
    )

"""Answers of the target: dialogues that ask turn by turn, side by side in one stream of requests.

The next shard is opened as soon as the engine would run out of requests, so that the engine stays full
across shards, turns and answers of any length, and no more shards are open than that takes.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from eagleray.corpus.chat import ChatTemplate
from eagleray.corpus.manifest import ContentKey
from eagleray.corpus.prompt import Prompt, least_true
from eagleray.corpus.supervision import to_sequences
from eagleray.distillation.answers import (
    NOTHING_TO_LEARN,
    AnsweredPrompt,
    AnsweredSequence,
    Answers,
    sort_out,
)
from eagleray.distillation.dialogue import Dialogue
from eagleray.distillation.plan import ShardJob, request_seed
from eagleray.engines.base import Engine, FailedRequest, GenerationRequest, RequestStream
from eagleray.errors import EngineError

MAX_FIRST_FAILURES = 32
"""Requests that may fail in an engine before the first answer. One bad prompt costs itself alone; an engine
that answers nothing must not turn a whole dataset into rejects."""


class TargetAnswers:
    """Answers prompts with an engine.

    Args:
        context_window_tokens: Longest prompt and answer together.
        concurrency: Requests that the engine runs at once; it is given no fewer while there are prompts.
        capture_layers: Also keep the features of these layers.
    """

    def __init__(
        self,
        engine: Engine,
        chat: ChatTemplate,
        key: ContentKey,
        context_window_tokens: int,
        concurrency: int,
        capture_layers: tuple[int, ...] | None = None,
    ):
        self.engine = engine
        self.chat = chat
        self.key = key
        self.context_window_tokens = context_window_tokens
        self.concurrency = concurrency
        self.capture_layers = capture_layers

    def answer(self, jobs: Iterable[ShardJob]) -> Iterator[tuple[ShardJob, Answers]]:
        """Answer all jobs through one stream.

        A turn that cannot be asked or answered ends its dialogue, never that of others.

        Raises:
            EngineError: The engine broke down, or fails every request.
        """
        desk = _Desk(self.engine.open_stream(capture_layers=self.capture_layers), self.key)
        waiting = iter(jobs)
        while True:
            while desk.stream.unfinished < self.concurrency and (job := next(waiting, None)) is not None:
                shard = _OpenShard(job, [one for prompt in job.prompts for one in self._dialogues(prompt)])
                desk.open(shard)
                if not shard.unfinished:
                    yield job, self._close(shard)
            if not desk.stream.unfinished:
                return
            for shard in desk.advance():
                yield shard.job, self._close(shard)

    def _dialogues(self, prompt: Prompt) -> Iterator[Dialogue]:
        settings = self.key.answering(prompt.category)
        max_prompt_tokens = self.context_window_tokens - settings.max_new_tokens
        for draw in range(settings.samples_per_prompt):
            yield Dialogue(prompt, self.chat, max_prompt_tokens, draw)

    def _close(self, shard: "_OpenShard") -> Answers:
        answered, failed = [], []
        for _, group in groupby(shard.dialogues, key=lambda dialogue: id(dialogue.prompt)):
            dialogues = list(group)
            sequences = [sequence for dialogue in dialogues for sequence in self._learn(dialogue)]
            prompt = dialogues[0].prompt
            if sequences:
                answered.append(AnsweredPrompt(prompt=prompt, sequences=tuple(sequences)))
            else:
                reasons = [dialogue.failure for dialogue in dialogues if not dialogue.turns]
                failed.append((prompt, reasons[0] if reasons else NOTHING_TO_LEARN))
        return sort_out(answered, failed)

    def _learn(self, dialogue: Dialogue) -> list[AnsweredSequence]:
        return [
            AnsweredSequence(
                sequence=sequence,
                # All answers up to its last turn are in it, as what is learnt or as history.
                origin=least_true(dialogue.origins[: sequence.last_turn + 1]),
                draw=dialogue.draw,
                # The generation of its last answer has seen all of it.
                captured=dialogue.captured[sequence.last_turn],
            )
            for sequence in to_sequences(dialogue.turns, self.key.supervision)
        ]


@dataclass
class _OpenShard:
    """A shard of which some dialogues still go on."""

    job: ShardJob
    dialogues: list[Dialogue]
    unfinished: int = 0


class _Desk:
    """Carries requests of dialogues into a stream, and its answers back."""

    def __init__(self, stream: RequestStream, key: ContentKey):
        self.stream = stream
        self._key = key
        self._asked: dict[str, tuple[_OpenShard, Dialogue]] = {}
        self._answers = 0
        self._failures = 0

    def open(self, shard: _OpenShard) -> None:
        """Ask the first turn of every dialogue."""
        shard.unfinished = sum(self._ask(shard, dialogue) for dialogue in shard.dialogues)

    def advance(self) -> Iterator[_OpenShard]:
        """Let the engine work, ask the next turns; yields the shards that this finished."""
        for outcome in self.stream.advance():
            shard, dialogue = self._asked.pop(outcome.request_id)
            if isinstance(outcome, FailedRequest):
                dialogue.fail(outcome.reason)
                self._count_failure(outcome)
            else:
                dialogue.take(outcome)
                self._answers += 1
            if not self._ask(shard, dialogue):
                shard.unfinished -= 1
                if not shard.unfinished:
                    yield shard

    def _ask(self, shard: _OpenShard, dialogue: Dialogue) -> bool:
        """Submit the next turn of a dialogue; False when there is none."""
        if not dialogue.ask():
            return False
        prompt, turn = dialogue.prompt, len(dialogue.turns)
        settings = self._key.answering(prompt.category)
        request = GenerationRequest(
            request_id=f"{prompt.prompt_id}-{dialogue.draw}-{turn}",
            prompt_ids=dialogue.request_ids,
            max_new_tokens=settings.max_new_tokens,
            sampling=settings.sampling,
            seed=request_seed(prompt, self._key, dialogue.draw, turn),
        )
        try:
            self.stream.submit(request)
        except EngineError as error:
            dialogue.fail(str(error))
            return False
        self._asked[request.request_id] = (shard, dialogue)
        return True

    def _count_failure(self, outcome: FailedRequest) -> None:
        self._failures += 1
        if not self._answers and self._failures >= MAX_FIRST_FAILURES:
            raise EngineError(
                f"The engine failed the first {self._failures} requests and answered none; the last reason: "
                f"{outcome.reason}. Look at the engine and its settings in distil.engine or engine."
            )

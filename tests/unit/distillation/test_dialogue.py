"""Asking turn by turn, with a target whose answers are written down."""

from collections.abc import Sequence
from typing import Any

import pytest

from eagleray.corpus.chat import ChatTemplate
from eagleray.corpus.prompt import Message, Prompt, ToolCall
from eagleray.distillation.answers import Answers, TargetAnswers
from eagleray.distillation.dialogue import requests_of
from eagleray.distillation.plan import ShardJob
from eagleray.engines.base import EngineTimes, Generation, GenerationRequest, GenerationRun
from tests.unit import conftest

SYSTEM, A, B, C = Message("system", "S"), Message("user", "A?"), Message("user", "B?"), Message("user", "C?")
OLD = Message("assistant", "old answer")
CALL = Message("assistant", "", tool_calls=(ToolCall("f", "{}"),))
RESULT = Message("tool", "7")


class ScriptedEngine:
    """Says the next line of its script at every request; an answer that ends in `~` is cut there."""

    def __init__(self, chat: ChatTemplate, *script: str):
        self.chat = chat
        self.script = list(script)
        self.asked: list[str] = []
        self.rounds: list[int] = []

    def generate(self, requests: Sequence[GenerationRequest], **options: Any) -> GenerationRun:
        self.rounds.append(len(requests))
        generations = tuple(self._answer(request) for request in requests)
        return GenerationRun(
            generations=generations, times=EngineTimes(prefill_s=0, draft_s=0, verify_s=0, host_s=0)
        )

    def _answer(self, request: GenerationRequest) -> Generation:
        self.asked.append(self.chat.decode(request.prompt_ids))
        line = self.script.pop(0)
        cut = line.endswith("~")
        return Generation(
            request_id=request.request_id,
            prompt_ids=request.prompt_ids,
            answer_ids=self.chat.encode(line[:-1] if cut else line + "<|im_end|>"),
            finish_reason="length" if cut else "stop",
            cycles=(),
        )


@pytest.fixture
def chat(tokenizer: Any) -> ChatTemplate:
    return ChatTemplate(tokenizer)


def _prompt(*messages: Message) -> Prompt:
    return Prompt(messages=messages, category="c", source="s", licence="l")


def _answer(engine: ScriptedEngine, *prompts: Prompt, max_prompt_tokens: int = 500, **key: Any) -> Answers:
    source = TargetAnswers(engine, engine.chat, conftest.KEY.model_copy(update=key), max_prompt_tokens)
    ((_, answers),) = source.answer([ShardJob(index=0, prompts=prompts)])
    return answers


@pytest.mark.parametrize(
    ("messages", "requests"),
    [
        ((A,), [(A,)]),
        ((SYSTEM, A, OLD, B), [(SYSTEM, A), (B,)]),
        ((A, B), [(A, B)]),
        ((A, OLD, OLD, B), [(A,), (B,)]),
        ((OLD, A), [(A,)]),
        ((A, CALL, RESULT, OLD, B), [(A, CALL, RESULT), (B,)]),
        ((A, OLD, RESULT), [(A, OLD, RESULT)]),
        ((A, CALL, RESULT), [(A, CALL, RESULT)]),
    ],
)
def test_what_is_asked_leaves_old_answers_off_and_calls_with_their_results_in(
    messages: tuple[Message, ...], requests: list[tuple[Message, ...]]
) -> None:
    assert requests_of(messages) == requests


def test_the_targets_own_answers_are_the_history(chat: ChatTemplate) -> None:
    engine = ScriptedEngine(chat, "new one", "new two")
    (answered,) = _answer(engine, _prompt(A, OLD, B)).answered
    assert "old answer" not in engine.asked[1]
    assert engine.asked[1].endswith(
        "A?<|im_end|>\n<|im_start|>assistant\nnew one<|im_end|>\n"
        "<|im_start|>user\nB?<|im_end|>\n<|im_start|>assistant\n"
    )
    (sequence,) = answered.sequences
    learnt = [chat.decode(sequence.input_ids[start:end]) for start, end in sequence.supervised]
    assert learnt == ["new one<|im_end|>", "new two<|im_end|>"]
    assert chat.decode(sequence.input_ids) == engine.asked[1] + "new two<|im_end|>"


def test_learning_the_last_turn_still_asks_them_all(chat: ChatTemplate) -> None:
    engine = ScriptedEngine(chat, "new one", "new two")
    (answered,) = _answer(engine, _prompt(A, OLD, B), supervised_turns="last").answered
    (sequence,) = answered.sequences
    assert [chat.decode(sequence.input_ids[start:end]) for start, end in sequence.supervised] == [
        "new two<|im_end|>"
    ]


def test_a_round_asks_the_next_turn_of_every_dialogue_at_once(chat: ChatTemplate) -> None:
    engine = ScriptedEngine(chat, "a1", "b1", "c1", "a2", "c2", "c3")
    answers = _answer(engine, _prompt(A, OLD, B), _prompt(B), _prompt(A, OLD, B, OLD, C))
    assert engine.rounds == [3, 2, 1]
    assert [one.sequences[0].last_turn for one in answers.answered] == [1, 0, 2]


def test_a_cut_answer_ends_its_dialogue_and_gets_no_end_token(chat: ChatTemplate) -> None:
    """D7b: three ids, finish reason length, no end token, and nobody is asked to go on from half a text."""
    engine = ScriptedEngine(chat, "one two three~")
    (answered,) = _answer(engine, _prompt(A, OLD, B)).answered
    (sequence,) = answered.sequences
    assert engine.rounds == [1]
    assert sequence.finish_reason == "length"
    assert sequence.answer_tokens == 3
    assert chat.tokenizer.eos_token_id not in sequence.input_ids[sequence.prompt_tokens :]


def test_a_turn_that_no_longer_fits_ends_its_dialogue_with_what_was_answered(chat: ChatTemplate) -> None:
    engine = ScriptedEngine(chat, "new one")
    answers = _answer(engine, _prompt(A, OLD, Message("user", "word " * 60)), max_prompt_tokens=60)
    assert len(answers.answered) == 1
    assert answers.rejects == ()


def test_an_answer_of_thoughts_alone_is_a_reject_if_thoughts_are_not_learnt(chat: ChatTemplate) -> None:
    engine = ScriptedEngine(chat, "<think>and on and on~", "<think>Hm.</think> Yes.")
    answers = _answer(engine, _prompt(A), _prompt(B), supervised_thinking=False)
    assert [reject.reason for reject in answers.rejects] == ["no supervised tokens"]
    (sequence,) = answers.answered[0].sequences
    (span,) = sequence.supervised
    assert chat.decode(sequence.input_ids[slice(*span)]).strip() == "Yes.<|im_end|>"


def test_calls_that_the_template_cannot_show_reject_their_prompt_alone(chat: ChatTemplate) -> None:
    """D5, regenerating."""
    engine = ScriptedEngine(chat, "fine")
    answers = _answer(engine, _prompt(A, CALL, RESULT), _prompt(B))
    assert len(answers.answered) == 1
    assert "does not show the tool_calls of turn 1" in answers.rejects[0].reason

"""Asking turn by turn, with a target whose answers are written down."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from eagleray.corpus.chat import ChatTemplate
from eagleray.corpus.config import AnswerSettings
from eagleray.corpus.prompt import Message, Prompt, ToolCall
from eagleray.distillation.answers import Answers
from eagleray.distillation.dialogue import requests_of
from eagleray.distillation.plan import ShardJob
from eagleray.distillation.target_answers import MAX_FIRST_FAILURES, TargetAnswers
from eagleray.engines.base import (
    Engine,
    EngineTimes,
    FailedRequest,
    Generation,
    GenerationRequest,
    RequestStream,
)
from eagleray.errors import EngineError
from eagleray.speculation.config import SamplingConfig
from tests.unit import conftest

SYSTEM, A, B, C = Message("system", "S"), Message("user", "A?"), Message("user", "B?"), Message("user", "C?")
OLD = Message("assistant", "old answer")
CALL = Message("assistant", "", tool_calls=(ToolCall("f", "{}"),))
RESULT = Message("tool", "7")


class ScriptedEngine(Engine):
    """Says the next line of its script at every request; an answer that ends in `~` is cut there, and one
    that begins with `!` fails."""

    def __init__(self, chat: ChatTemplate, *script: str):
        self.chat = chat
        self.script = list(script)
        self.requests: list[GenerationRequest] = []
        self.rounds: list[int] = []
        """Requests answered by each `advance`."""

    @property
    def asked(self) -> list[str]:
        return [self.chat.decode(request.prompt_ids) for request in self.requests]

    def open_stream(self, **options: Any) -> RequestStream:
        return ScriptedStream(self)


class ScriptedStream:
    delivered_tokens = 0
    times = EngineTimes(prefill_s=0, draft_s=0, verify_s=0, host_s=0)

    def __init__(self, engine: ScriptedEngine):
        self.engine = engine
        self.waiting: list[GenerationRequest] = []

    @property
    def unfinished(self) -> int:
        return len(self.waiting)

    def submit(self, request: GenerationRequest) -> None:
        if "unservable" in self.engine.chat.decode(request.prompt_ids):
            raise EngineError("the engine cannot serve it")
        assert request.request_id not in {one.request_id for one in self.waiting}
        self.waiting.append(request)

    def advance(self) -> list[Generation | FailedRequest]:
        answered, self.waiting = self.waiting, []
        self.engine.rounds.append(len(answered))
        return [self._answer(request) for request in answered]

    def cancel(self, request_id: str) -> None:
        raise AssertionError("nobody gives up")

    def _answer(self, request: GenerationRequest) -> Generation | FailedRequest:
        self.engine.requests.append(request)
        line = self.engine.script.pop(0)
        if line.startswith("!"):
            return FailedRequest(request_id=request.request_id, reason=line[1:])
        cut = line.endswith("~")
        return Generation(
            request_id=request.request_id,
            prompt_ids=request.prompt_ids,
            answer_ids=self.engine.chat.encode(line[:-1] if cut else line + "<|im_end|>"),
            finish_reason="length" if cut else "stop",
            cycles=(),
        )


@pytest.fixture
def chat(tokenizer: Any) -> ChatTemplate:
    return ChatTemplate(tokenizer)


def _prompt(*messages: Message) -> Prompt:
    return Prompt(messages=messages, category="c", source="s", licence="l")


def _source(
    engine: ScriptedEngine, max_prompt_tokens: int = 500, concurrency: int = 8, **changes: Any
) -> TargetAnswers:
    key = conftest.KEY.model_copy(update=changes)
    return TargetAnswers(engine, engine.chat, key, max_prompt_tokens + key.max_new_tokens, concurrency)


def _answer(engine: ScriptedEngine, *prompts: Prompt, max_prompt_tokens: int = 500, **key: Any) -> Answers:
    source = _source(engine, max_prompt_tokens, **key)
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
    (sequence,) = (one.sequence for one in answered.sequences)
    learnt = [chat.decode(sequence.input_ids[start:end]) for start, end in sequence.supervised]
    assert learnt == ["new one<|im_end|>", "new two<|im_end|>"]
    assert chat.decode(sequence.input_ids) == engine.asked[1] + "new two<|im_end|>"


def test_learning_the_last_turn_still_asks_them_all(chat: ChatTemplate) -> None:
    engine = ScriptedEngine(chat, "new one", "new two")
    (answered,) = _answer(engine, _prompt(A, OLD, B), supervised_turns="last").answered
    (sequence,) = (one.sequence for one in answered.sequences)
    assert [chat.decode(sequence.input_ids[start:end]) for start, end in sequence.supervised] == [
        "new two<|im_end|>"
    ]


def test_a_round_asks_the_next_turn_of_every_dialogue_at_once(chat: ChatTemplate) -> None:
    engine = ScriptedEngine(chat, "a1", "b1", "c1", "a2", "c2", "c3")
    answers = _answer(engine, _prompt(A, OLD, B), _prompt(B), _prompt(A, OLD, B, OLD, C))
    assert engine.rounds == [3, 2, 1]
    assert [one.sequences[0].sequence.last_turn for one in answers.answered] == [1, 0, 2]


def test_a_cut_answer_ends_its_dialogue_and_gets_no_end_token(chat: ChatTemplate) -> None:
    """D7b: three ids, finish reason length, no end token, and nobody is asked to go on from half a text."""
    engine = ScriptedEngine(chat, "one two three~")
    (answered,) = _answer(engine, _prompt(A, OLD, B)).answered
    (sequence,) = (one.sequence for one in answered.sequences)
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
    (sequence,) = (one.sequence for one in answers.answered[0].sequences)
    (span,) = sequence.supervised
    assert chat.decode(sequence.input_ids[slice(*span)]).strip() == "Yes.<|im_end|>"


def test_calls_that_the_template_cannot_show_reject_their_prompt_alone(chat: ChatTemplate) -> None:
    """D5, regenerating."""
    engine = ScriptedEngine(chat, "fine")
    answers = _answer(engine, _prompt(A, CALL, RESULT), _prompt(B))
    assert len(answers.answered) == 1
    assert "does not show the tool_calls of turn 1" in answers.rejects[0].reason


WARM = SamplingConfig(temperature=0.8)


def _user(text: str) -> Prompt:
    return _prompt(Message("user", text))


def test_the_engine_stays_full_across_shards_and_no_more_shards_are_open_than_that_takes(
    chat: ChatTemplate,
) -> None:
    engine = ScriptedEngine(chat, *["fine"] * 9)
    taken: list[int] = []

    def jobs() -> Iterator[ShardJob]:
        for index in range(3):
            taken.append(index)
            yield ShardJob(index=index, prompts=tuple(_user(f"{index} {n}") for n in range(3)))

    answers = _source(engine, concurrency=4).answer(jobs())
    assert next(answers)[0].index == 0
    assert taken == [0, 1], "a shard was opened that the engine had no room for"
    assert [job.index for job, _ in answers] == [1, 2]
    assert engine.rounds == [6, 3]


def test_a_shard_is_given_back_when_its_last_dialogue_ends_whatever_others_do(chat: ChatTemplate) -> None:
    engine = ScriptedEngine(chat, "a1", "b1", "c1", "a2")
    jobs = [ShardJob(index=0, prompts=(_prompt(A, OLD, B),)), ShardJob(index=1, prompts=(_prompt(B),))]
    finished = _source(engine, concurrency=2).answer(jobs)
    assert [job.index for job, _ in finished] == [1, 0]


def test_one_failed_or_unservable_request_rejects_its_prompt_alone(chat: ChatTemplate) -> None:
    engine = ScriptedEngine(chat, "fine", "!out of cheese", "fine too")
    answers = _answer(engine, _user("one"), _user("two"), _user("unservable"), _user("three"))
    assert [one.prompt.messages[0].content for one in answers.answered] == ["one", "three"]
    assert [reject.reason for reject in answers.rejects] == ["out of cheese", "the engine cannot serve it"]


def test_a_later_turn_that_fails_leaves_what_was_answered(chat: ChatTemplate) -> None:
    engine = ScriptedEngine(chat, "new one", "!gone")
    answers = _answer(engine, _prompt(A, OLD, B))
    assert (len(answers.answered), answers.rejects) == (1, ())


def test_an_engine_that_answers_nothing_ends_the_job_instead_of_rejecting_everything(
    chat: ChatTemplate,
) -> None:
    prompts = [_user(str(n)) for n in range(MAX_FIRST_FAILURES + 8)]
    with pytest.raises(
        EngineError, match=r"failed the first 32 requests and answered none; .* no such model"
    ):
        _answer(ScriptedEngine(chat, *["!no such model"] * len(prompts)), *prompts)
    late = ScriptedEngine(chat, "fine", *["!broken"] * len(prompts))
    assert len(_answer(late, *prompts).rejects) == len(prompts) - 1


def test_several_samples_of_a_prompt_are_dialogues_of_their_own(chat: ChatTemplate) -> None:
    engine = ScriptedEngine(chat, "a1", "b1", "a2", "b2")
    answers = _answer(engine, _prompt(A, OLD, B), sampling=WARM, samples_per_prompt=2)
    (answered,) = answers.answered
    assert [one.draw for one in answered.sequences] == [0, 1]
    assert "a1" in engine.asked[2]
    assert "b1" in engine.asked[3]
    assert len({request.seed for request in engine.requests}) == 4
    assert {request.sampling for request in engine.requests} == {WARM}


def test_a_prompt_is_a_reject_only_if_no_draw_of_it_was_answered(chat: ChatTemplate) -> None:
    engine = ScriptedEngine(chat, "!lost", "fine", "!lost", "!lost too")
    answers = _answer(engine, _user("one"), _user("two"), sampling=WARM, samples_per_prompt=2)
    assert [[one.draw for one in answered.sequences] for answered in answers.answered] == [[1]]
    assert [reject.reason for reject in answers.rejects] == ["lost"]


def test_a_category_is_answered_by_its_own_settings(chat: ChatTemplate) -> None:
    engine = ScriptedEngine(chat, *["fine"] * 4)
    own = AnswerSettings(max_new_tokens=3, sampling=WARM, samples_per_prompt=3)
    code = dataclasses.replace(_user("code"), category="code")
    _answer(engine, _user("prose"), code, by_category={"code": own})
    assert [(one.max_new_tokens, one.sampling.greedy) for one in engine.requests] == [
        (8, True), (3, False), (3, False), (3, False)
    ]  # fmt: skip


def test_seeds_are_those_of_the_prompt_wherever_and_whenever_it_is_asked(chat: ChatTemplate) -> None:
    seeds = []
    for prompts in ([_user("one"), _user("two")], [_user("two")]):
        engine = ScriptedEngine(chat, "fine", "fine")
        _answer(engine, *prompts, sampling=WARM)
        seeds.append({chat.decode(one.prompt_ids): one.seed for one in engine.requests})
    (asked,) = seeds[1]
    assert seeds[0][asked] == seeds[1][asked]
    assert all(0 <= seed < 2**63 for seed in seeds[0].values())


def test_a_sequence_is_called_by_its_least_true_answer(chat: ChatTemplate) -> None:
    class Server(ScriptedEngine):
        def open_stream(self, **options: Any) -> RequestStream:
            stream = ScriptedStream(self)
            origins = iter(("retokenised", "target"))
            answer = stream._answer
            stream._answer = lambda request: dataclasses.replace(  # type: ignore[method-assign]
                answer(request), origin=next(origins)
            )
            return stream

    (answered,) = _answer(Server(chat, "one", "two"), _prompt(A, OLD, B)).answered
    assert [one.origin for one in answered.sequences] == ["retokenised"]

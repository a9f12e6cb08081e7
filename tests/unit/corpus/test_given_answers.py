"""Which ids of given answers are learnt, for the templates of every family."""

from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from eagleray.corpus.chat import ChatTemplate, RenderError
from eagleray.corpus.config import SupervisionConfig
from eagleray.corpus.given_answers import given_turns
from eagleray.corpus.prompt import ASSISTANT, Message, Prompt, ToolCall
from eagleray.corpus.supervision import TrainingSequence, to_sequences

ALL = SupervisionConfig()


def conversation(*messages: Message | tuple[str, str], **fields: Any) -> Prompt:
    turns = [turn if isinstance(turn, Message) else Message(*turn) for turn in messages]
    end = max(index for index, turn in enumerate(turns) if turn.role != ASSISTANT) + 1
    return Prompt(
        messages=tuple(turns[:end]), given=tuple(turns[end:]), category="c", source="s", licence="l", **fields
    )


def encode(chat: Any, prompt: Prompt, config: SupervisionConfig = ALL) -> list[TrainingSequence]:
    return to_sequences(given_turns(chat, prompt), config)


def learnt(chat: Any, sequence: TrainingSequence) -> list[str]:
    return [chat.decode(sequence.input_ids[start:end]) for start, end in sequence.supervised]


D1 = conversation(("user", "Hi"), ("assistant", "Ok."))
D3A = conversation(
    ("system", "Be terse."), ("user", "A?"), ("assistant", "Yes."), ("user", "B?"), ("assistant", "Yes.")
)


def test_a_template_without_generation_marks_supervises_the_answer_and_its_end_alone(open_chat: Any) -> None:
    """D1: not the whole conversation, and not the line break after the turn."""
    (sequence,) = encode(open_chat("smollm2"), D1)
    assert len(sequence.input_ids) == 35
    assert sequence.supervised == ((31, 34),)
    assert (sequence.prompt_tokens, sequence.answer_tokens) == (31, 3)
    assert learnt(open_chat("smollm2"), sequence) == ["Ok.<|im_end|>"]


def test_an_answer_that_occurs_twice_is_supervised_twice(open_chat: Any) -> None:
    """D3a."""
    (sequence,) = encode(open_chat("smollm2"), D3A)
    assert len(sequence.input_ids) == 39
    assert sequence.supervised == ((20, 23), (35, 38))


def test_a_user_turn_that_equals_the_answer_is_not_supervised(open_chat: Any) -> None:
    """D3b."""
    (sequence,) = encode(open_chat("smollm2"), conversation(("user", "Yes."), ("assistant", "Yes.")))
    assert len(sequence.input_ids) == 36
    assert sequence.supervised == ((32, 35),)


def test_the_end_token_is_supervised_though_padding_has_the_same_id(open_chat: Any) -> None:
    """D10: spans are positions of the unpadded row, so the side of the padding cannot move them."""
    chat = open_chat("smollm2")
    assert chat.tokenizer.pad_token_id == chat.tokenizer.eos_token_id == 2
    for prompt, count, ends in ((D1, 3, [33]), (D3A, 6, [22, 37])):
        (sequence,) = encode(chat, prompt)
        assert sum(end - start for start, end in sequence.supervised) == count
        assert [end - 1 for _, end in sequence.supervised] == ends
        assert all(sequence.input_ids[end] == 2 for end in ends)


def test_an_answer_beyond_the_cut_leaves_no_supervised_token(open_chat: Any) -> None:
    """D7a: such a row is dropped by its count, not trained with an empty mask."""
    (sequence,) = encode(open_chat("smollm2"), conversation(("user", "word " * 60), ("assistant", "Ok.")))
    assert (sequence.prompt_tokens, len(sequence.input_ids)) == (91, 95)
    assert all(start >= 64 for start, _ in sequence.supervised)


def test_a_cut_answer_gets_no_end_that_nobody_said(open_chat: Any) -> None:
    """D7b, for answers that a log says were cut."""
    cut = conversation(("user", "Hi"), ("assistant", "Ok."), given_finish_reason="length")
    (sequence,) = encode(open_chat("smollm2"), cut)
    assert learnt(open_chat("smollm2"), sequence) == ["Ok."]
    assert len(sequence.input_ids) == 33
    assert sequence.finish_reason == "length"


WEATHER = (
    Message("user", "Weather in Oslo?"),
    Message("assistant", "", tool_calls=(ToolCall("get_weather", '{"city": "Oslo"}', "c1"),)),
    Message("tool", '{"temp_c":4}', tool_call_id="c1"),
    Message("assistant", "It is 4 C."),
)


def test_tool_calls_that_the_template_cannot_show_are_a_reason_not_a_loss(open_chat: Any) -> None:
    """D5, the embedded target: its template knows no tool calls."""
    with pytest.raises(RenderError, match="does not show the tool_calls of turn 1"):
        encode(open_chat("smollm2"), conversation(*WEATHER))


@pytest.mark.parametrize(
    ("family", "call"),
    [
        (
            "qwen3",
            '<think>\n\n</think>\n\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n'
            "</tool_call><|im_end|>",
        ),
        ("llama3", '{"name": "get_weather", "parameters": {"city": "Oslo"}}<|eot_id|>'),
    ],
)
def test_calls_are_supervised_and_tool_results_are_not(open_chat: Any, family: str, call: str) -> None:
    """D5: null content is empty text, the call and the last answer are learnt, the result is not."""
    chat = open_chat(family)
    sequences = encode(chat, conversation(*WEATHER))
    spoken = [text for sequence in sequences for text in learnt(chat, sequence)]
    assert spoken[0] == call
    assert "It is 4 C." in spoken[1]
    assert len(spoken) == 2
    assert not any("temp_c" in text for text in spoken)
    assert not any("None" in chat.decode(sequence.input_ids) for sequence in sequences)


END = {
    "smollm2": "<|im_end|>",
    "chatml": "<|im_end|>",
    "chatml_marked": "<|im_end|>",
    "llama3": "<|eot_id|>",
    "qwen3": "<|im_end|>",
    "mistral": "</s>",
    "gemma": "<end_of_turn>",
}
TWO_TURNS = (("user", "Yes."), ("assistant", "Yes."), ("user", "Yes."), ("assistant", "Yes."))


@pytest.mark.parametrize("family", sorted(set(END) - {"qwen3", "llama3"}))
def test_every_family_learns_each_answer_and_its_end_in_one_sequence(open_chat: Any, family: str) -> None:
    chat = open_chat(family)
    (sequence,) = encode(chat, conversation(*TWO_TURNS))
    assert [text.strip() for text in learnt(chat, sequence)] == ["Yes." + END[family]] * 2
    whole = chat.answered([Message(*turn) for turn in TWO_TURNS])
    assert sequence.input_ids == chat.encode(whole)


def test_a_request_whose_last_piece_would_be_cut_otherwise_starts_another_sequence(open_chat: Any) -> None:
    """Two line breaks end a request of this template in one piece; before a letter they are two pieces."""
    chat = open_chat("llama3")
    sequences = encode(chat, conversation(*TWO_TURNS))
    assert [learnt(chat, sequence) for sequence in sequences] == [["Yes.<|eot_id|>"]] * 2
    for sequence, asked in zip(sequences, (TWO_TURNS[:1], TWO_TURNS[:3]), strict=True):
        request = chat.encode(chat.ask([Message(*turn) for turn in asked]))
        assert sequence.input_ids[: sequence.prompt_tokens] == request


@pytest.mark.parametrize("family", sorted(END))
def test_only_the_last_answer_is_learnt_if_asked_so(open_chat: Any, family: str) -> None:
    chat = open_chat(family)
    (sequence,) = encode(chat, conversation(*TWO_TURNS), SupervisionConfig(turns="last"))
    assert len(sequence.supervised) == 1
    assert sequence.supervised[0][0] > len(sequence.input_ids) / 2


def test_generation_marks_change_nothing(open_chat: Any) -> None:
    plain, marked = (encode(open_chat(family), D3A) for family in ("chatml", "chatml_marked"))
    assert plain == marked


THOUGHTFUL = Message("assistant", "Paris.", reasoning="France. Capital?")


@pytest.mark.parametrize(
    ("thinking", "expected"),
    [(True, "<think>\nFrance. Capital?\n</think>\n\nParis.<|im_end|>"), (False, "Paris.<|im_end|>")],
)
@pytest.mark.parametrize(
    "answer", [THOUGHTFUL, Message("assistant", "<think>\nFrance. Capital?\n</think>\n\nParis.")]
)
def test_thoughts_are_learnt_or_not(open_chat: Any, thinking: bool, expected: str, answer: Message) -> None:
    chat = open_chat("qwen3")
    config = SupervisionConfig(thinking=thinking)
    (sequence,) = encode(chat, conversation(("user", "Capital?"), answer), config)
    assert learnt(chat, sequence) == [expected]
    assert "<think>\nFrance" in chat.decode(sequence.input_ids)


def test_thoughts_spelled_in_text_pieces_are_left_out_as_well(open_chat: Any) -> None:
    chat = open_chat("chatml")
    answer = ("assistant", "<think>Hm.</think>\n\n Paris.")
    config = SupervisionConfig(thinking=False)
    (sequence,) = encode(chat, conversation(("user", "Capital?"), answer), config)
    assert learnt(chat, sequence)[0].strip() == "Paris.<|im_end|>"


def test_thoughts_that_a_template_drops_are_a_reason(open_chat: Any) -> None:
    with pytest.raises(RenderError, match="does not show the thoughts of turn 1"):
        encode(open_chat("chatml"), conversation(("user", "Capital?"), THOUGHTFUL))


def test_history_shown_otherwise_than_it_was_said_starts_another_sequence(open_chat: Any) -> None:
    """Qwen 3 drops old thoughts: the second request does not begin with what was said in the first."""
    chat = open_chat("qwen3")
    turns = (
        ("user", "Capital?"),
        THOUGHTFUL,
        ("user", "Sure?"),
        Message("assistant", "Yes.", reasoning="Ok"),
    )
    first, second = encode(chat, conversation(*turns))
    assert chat.decode(first.input_ids).endswith("Capital?\n</think>\n\nParis.<|im_end|>\n")
    assert learnt(chat, second) == ["<think>\nOk\n</think>\n\nYes.<|im_end|>"]
    assert "France" not in chat.decode(second.input_ids)


def test_without_thinking_the_request_ends_with_closed_thoughts(open_chat: Any) -> None:
    chat = open_chat("qwen3", enable_thinking=False)
    sequences = encode(chat, conversation(*TWO_TURNS))
    assert [text for sequence in sequences for text in learnt(chat, sequence)] == ["Yes.<|im_end|>"] * 2
    start = sequences[0].supervised[0][0]
    assert chat.decode(sequences[0].input_ids[:start]).endswith("assistant\n<think>\n\n</think>\n\n")
    with pytest.raises(RenderError, match="continuation of its request"):
        encode(chat, conversation(("user", "Capital?"), THOUGHTFUL))


def test_an_answer_that_begins_with_a_line_break_keeps_the_piece_of_the_request(open_chat: Any) -> None:
    """D3: re-tokenised as a whole, the two line breaks would be one piece across the boundary."""
    chat = open_chat("chatml")
    (sequence,) = encode(chat, conversation(("user", "Hi"), ("assistant", "\n\nOk.")))
    request = chat.encode(chat.ask([Message("user", "Hi")]))
    assert sequence.input_ids[: len(request)] == request
    assert learnt(chat, sequence) == ["\n\nOk.<|im_end|>"]
    assert chat.encode("<|im_start|>assistant\n\n\nOk.")[:3] != request[-3:]


def test_an_empty_answer_teaches_its_end(open_chat: Any) -> None:
    for family, end in END.items():
        chat = open_chat(family)
        (sequence,) = encode(chat, conversation(("user", "Hi"), ("assistant", "")))
        assert learnt(chat, sequence)[0].removeprefix("<think>\n\n</think>\n\n").strip() == end


@pytest.mark.parametrize(
    ("family", "turns", "reason"),
    [
        ("gemma", (("system", "x"), ("user", "Hi"), ("assistant", "Ok.")), "role not supported: system"),
        ("mistral", (("user", "a"), ("user", "b"), ("assistant", "c")), "must alternate"),
        (
            "qwen3",
            (("user", "a"), ("critic", "b"), ("assistant", "c")),
            r"leaves out turn 1 \(role 'critic'\)",
        ),
        ("smollm2", (("user", "a"), ("assistant", "b<|im_end|>")), "holds the end-of-turn token"),
        ("smollm2", (("user", "a"),), "no answer to keep"),
    ],
)
def test_what_cannot_be_supervised_exactly_has_a_reason(
    open_chat: Any, family: str, turns: tuple[tuple[str, str], ...], reason: str
) -> None:
    with pytest.raises(RenderError, match=reason):
        encode(open_chat(family), conversation(*turns))


def test_a_tokenizer_that_marks_words_instead_of_spaces_loses_none_at_the_boundary(open_chat: Any) -> None:
    """Sentence-piece style: decoding drops the space that a text begins with."""
    pieces = ["<s>", "</s>", "[INST]", "[/INST]", "<unk>", *"\u2581abcdefghijklmnopqrstuvwxyz.?!"]
    model = models.BPE({piece: index for index, piece in enumerate(pieces)}, [], unk_token="<unk>")
    backend = Tokenizer(model)
    backend.normalizer = normalizers.Replace(" ", "\u2581")
    backend.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")
    tokenizer.add_tokens(["[INST]", "[/INST]"], special_tokens=True)
    tokenizer.chat_template = open_chat("mistral").tokenizer.chat_template
    chat = ChatTemplate(tokenizer)
    (sequence,) = encode(chat, conversation(("user", "so?"), ("assistant", "it is so.")))
    ((start, end),) = sequence.supervised
    assert [pieces[index] for index in sequence.input_ids[start:end]] == [
        *"\u2581it\u2581is\u2581so.",
        "</s>",
    ]
    with pytest.raises(RenderError, match="cannot spell turn 1"):
        encode(chat, conversation(("user", "so?"), ("assistant", "NO")))

"""Answers that the input rows came with, as ids after the request that they answer.

The template says where an answer lies: it starts where the request for it ends, and it ends where
what the template writes after every answer begins. The ids of request and answer are those a server
would see and the target would emit, so a piece that would span the boundary is split there.
The result is checked at once: the answer's ids must decode to the answer.
"""

from eagleray.corpus.chat import ChatTemplate, RenderError
from eagleray.corpus.prompt import ASSISTANT, FinishReason, Message, Prompt
from eagleray.corpus.supervision import AnsweredTurn
from eagleray.corpus.thinking import THINKING_END, THINKING_START, thinking_tokens


def given_turns(chat: ChatTemplate, prompt: Prompt) -> list[AnsweredTurn]:
    """Return every assistant turn of a conversation with its request.

    Raises:
        RenderError: The row has no answer, or the template cannot show one as the continuation of the
            request for it. The message is the reason alone.
    """
    if not prompt.given:
        raise RenderError("the row has no answer to keep")
    messages = prompt.messages + prompt.given
    last = len(messages) - 1
    return [
        _answered_turn(
            chat, messages[: index + 1], prompt.tools, prompt.given_finish_reason if index == last else "stop"
        )
        for index, message in enumerate(messages)
        if message.role == ASSISTANT
    ]


def _answered_turn(
    chat: ChatTemplate, messages: tuple[Message, ...], tools: str, finish_reason: FinishReason
) -> AnsweredTurn:
    history = messages[:-1]
    request = chat.ask(history, tools)
    shown = chat.answered(messages, tools)
    closing = chat.closing(history, tools)
    fits = len(request) + len(closing) <= len(shown)
    if not (fits and shown.startswith(request) and shown.endswith(closing)):
        raise RenderError(
            f"the chat template does not show turn {len(history)} as the continuation of its request"
        )
    text = shown[len(request) : len(shown) - len(closing)]
    _require_whole(chat, messages, tools, text, shown)
    request_ids = chat.encode(request)
    answer_ids = chat.encode_after(request, request_ids, text)
    if chat.decode_after(request_ids, answer_ids) != text:
        raise RenderError(f"the tokenizer cannot spell turn {len(history)}: its ids decode to other text")
    end_ids, tail_ids = _split_closing(chat, closing)
    if end_ids[-1] in answer_ids:
        raise RenderError(f"turn {len(history)} holds the end-of-turn token {chat.decode(end_ids[-1:])!r}")
    if finish_reason == "length":
        # The answer was cut: an end that nobody said is not taught, nor anything after it.
        end_ids, tail_ids = (), ()
    return AnsweredTurn(
        request_ids=request_ids,
        answer_ids=answer_ids + end_ids,
        thinking_tokens=thinking_tokens(answer_ids + end_ids, request, chat.decode),
        finish_reason=finish_reason,
        tail_ids=tail_ids,
    )


def _require_whole(
    chat: ChatTemplate, messages: tuple[Message, ...], tools: str, text: str, shown: str
) -> None:
    """Check that the text between request and closing is the answer and, if it has any, its thoughts."""
    index, answer = len(messages) - 1, messages[-1]
    if answer.reasoning.strip() not in text:
        raise RenderError(f"the chat template does not show the thoughts of turn {index}")
    if answer.tool_calls:
        silent = Message(ASSISTANT, answer.content, answer.reasoning)
        if chat.answered((*messages[:-1], silent), tools) == shown:
            raise RenderError(f"the chat template does not show the tool_calls of turn {index}")
        if answer.content.strip() and not text.lstrip().startswith(answer.content.strip()):
            raise RenderError(f"the chat template leaves out text beside the tool_calls of turn {index}")
        return
    visible = _after_thoughts(answer.content)
    before, ends_so = text.rstrip().removesuffix(visible), text.rstrip().endswith(visible)
    thoughts = before.strip()
    if not ends_so or (thoughts and not thoughts.endswith(THINKING_END)):
        raise RenderError(f"the chat template changes the text of turn {index}")


def _after_thoughts(content: str) -> str:
    """The answer without thoughts that are spelled inside it, as templates that know thoughts show it."""
    stripped = content.strip()
    _, mark, after = stripped.partition(THINKING_END)
    return after.strip() if mark and stripped.startswith(THINKING_START) else stripped


def _split_closing(chat: ChatTemplate, closing: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Split what follows an answer into the end-of-turn token (with what precedes it) and the rest."""
    ids = chat.encode(closing)
    for index, token_id in enumerate(ids):
        if chat.is_control(token_id):
            return ids[: index + 1], ids[index + 1 :]
    raise RenderError("the chat template writes no end-of-turn token after an answer")

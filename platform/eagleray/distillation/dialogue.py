"""A conversation on its way through the target: one turn is asked, answered, and becomes history.

The answers of the input row are left off and the target's own take their place, with one exception:
an assistant turn that calls a tool, or that a tool answers, stays as it was, because the result that
follows belongs to it. It is history then, and is not learnt.
"""

from collections.abc import Sequence

from eagleray.corpus.chat import ChatTemplate, RenderError
from eagleray.corpus.prompt import ASSISTANT, TOOL, AnswerOrigin, Message, Prompt
from eagleray.corpus.supervision import AnsweredTurn
from eagleray.corpus.thinking import thinking_tokens
from eagleray.engines.base import CapturedFeatures, Generation


class Dialogue:
    """Asks the turns of one prompt in order. Stops at an answer that was cut and at a turn that fails;
    what was answered until then counts."""

    def __init__(self, prompt: Prompt, chat: ChatTemplate, max_prompt_tokens: int, draw: int = 0):
        self.prompt = prompt
        self.draw = draw
        """Which of several dialogues about one prompt this is."""
        self.request_ids: tuple[int, ...] = ()
        """What to ask now; set by `ask`."""
        self.turns: list[AnsweredTurn] = []
        self.captured: list[CapturedFeatures | None] = []
        self.origins: list[AnswerOrigin] = []
        """Of the answers of `turns`."""
        self.failure = ""
        """Why the dialogue could not go on; empty while it can."""
        self._chat = chat
        self._max_prompt_tokens = max_prompt_tokens
        self._history: list[Message] = []
        self._unasked = requests_of(prompt.messages)
        self._request_text = ""

    def ask(self) -> bool:
        """Prepare the next request; False when there is none."""
        if self.failure or len(self.turns) == len(self._unasked):
            return False
        self._history += self._unasked[len(self.turns)]
        try:
            self._request_text = self._chat.ask(self._history, self.prompt.tools)
        except RenderError as error:
            self.failure = str(error)
            return False
        self.request_ids = self._chat.encode(self._request_text)
        if len(self.request_ids) > self._max_prompt_tokens:
            self.failure = (
                f"the prompt has {len(self.request_ids)} tokens; at most {self._max_prompt_tokens} fit"
            )
        return not self.failure

    def fail(self, reason: str) -> None:
        """End the dialogue: its next turn was not answered."""
        self.failure = reason

    def take(self, generation: Generation) -> None:
        """Receive the answer to the request."""
        answer_ids = generation.answer_ids
        self.turns.append(
            AnsweredTurn(
                request_ids=generation.prompt_ids,
                answer_ids=answer_ids,
                thinking_tokens=thinking_tokens(answer_ids, self._request_text, self._chat.decode),
                finish_reason=generation.finish_reason,
            )
        )
        self.captured.append(generation.captured)
        self.origins.append(generation.origin)
        if generation.finish_reason == "length":
            self.failure = "the answer was cut, so what follows it was not asked"
            return
        said = self._chat.decode_after(generation.prompt_ids, answer_ids[:-1])
        self._history.append(Message(ASSISTANT, said))


def requests_of(messages: Sequence[Message]) -> list[tuple[Message, ...]]:
    """Split the turns of a prompt into requests: what is added before each answer of the target."""
    requests: list[tuple[Message, ...]] = []
    waiting: list[Message] = []
    for message, following in zip(messages, [*messages[1:], None], strict=True):
        if message.role != ASSISTANT or message.tool_calls or (following and following.role == TOOL):
            waiting.append(message)
        elif waiting:
            requests.append(tuple(waiting))
            waiting = []
    return [*requests, tuple(waiting)] if waiting else requests

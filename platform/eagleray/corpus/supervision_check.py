"""An independent look at finished samples: does the mask lie where the template says that answers lie?

Spans are made from requests and answers; this check knows neither. It reads the ids alone, as a person
would: before an answer stands the template's request for one, after it an end of turn, and neither
nothing nor everything is learnt. A few samples of every shard pass through it.
"""

from collections.abc import Sequence

from eagleray.corpus.chat import ChatTemplate, RenderError
from eagleray.corpus.prompt import Message
from eagleray.corpus.sample import Sample
from eagleray.errors import NumericsError

CONTEXT_TOKENS = 12
"""Ids around a boundary that an error shows."""


def check_supervision(chat: ChatTemplate, samples: Sequence[Sample]) -> None:
    """Check the masks of samples of conversations without tools.

    After a tool's result some templates ask for an answer in other ways, which ids alone do not tell.

    Raises:
        NumericsError: A mask is empty or full, out of order, or does not lie on an answer. Shows the
            sample and the text around the place.
    """
    request = _request(chat)
    for sample in samples:
        problem = _problem(chat, sample, request)
        if problem:
            raise NumericsError(
                f"The mask of sample {sample.sample_id} ({sample.source}) is wrong: {problem}. "
                "Nothing was published. The chat template or tokenizer of the target does something that "
                "supervision does not expect; please report it with the template."
            )


def _request(chat: ChatTemplate) -> str:
    """What the template writes between a user turn and its answer; empty where that cannot be told apart."""
    asking = (Message("user", "?"),)
    try:
        asked, told = chat.ask(asking), chat.answered(asking)
    except RenderError:
        return ""
    return asked.removeprefix(told) if asked.startswith(told) else ""


def _problem(chat: ChatTemplate, sample: Sample, request: str) -> str:
    ids, spans = sample.input_ids, sample.supervised
    edges = [edge for span in spans for edge in span]
    if not spans or edges != sorted(set(edges)) or edges[-1] > len(ids):
        return f"the spans {list(spans)} of {len(ids)} ids are empty, out of order or out of range"
    if edges[0] < sample.prompt_tokens or not sample.prompt_tokens:
        return f"it begins at {edges[0]}, before the first answer at {sample.prompt_tokens}"
    before = chat.decode(ids[: sample.prompt_tokens])
    if not before.endswith(request):
        shown = chat.decode(ids[: sample.prompt_tokens][-CONTEXT_TOKENS:])
        return f"the first answer follows {shown!r}, expected the request {request!r}"
    for number, (_, end) in enumerate(spans, start=1):
        cut = number == len(spans) and sample.finish_reason == "length"
        if not cut and not chat.is_control(ids[end - 1]):
            shown = chat.decode(ids[:end][-CONTEXT_TOKENS:])
            return f"answer {number} ends with {shown!r}, expected an end-of-turn token"
    return ""

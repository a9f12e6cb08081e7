"""How each engine that we start is asked for a stream of ids, and what its events tell.

The bodies are those of `openai/dialects.py`, for the same routes, with what a request may shape beside
sampling.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from eagleray.engines.base import GenerationRequest
from eagleray.engines.openai.dialects import SglangDialect, VllmDialect
from eagleray.engines.served import MODEL_NAME, StepCounts
from eagleray.engines.sglang.process import SglangServer
from eagleray.engines.vllm.process import VllmServer, step_counts


@dataclass(frozen=True, kw_only=True)
class Event:
    """One event of a stream."""

    ids: Sequence[int] = ()
    """Emitted since the last one."""
    finish_reason: str | None = None
    """Set once, at the end."""
    counts: StepCounts | None = None
    """Verifications of the whole answer, where it tells them."""


class Dialogue(Protocol):
    """Requests to one kind of server, and its events."""

    path: ClassVar[str]
    shapes: ClassVar[frozenset[str]]
    """What a request may ask for beside sampling."""

    def body(self, request: GenerationRequest, room: int, stop_ids: tuple[int, ...]) -> dict[str, Any]:
        """The body that asks for at most `room` tokens."""
        ...

    def read(self, event: Mapping[str, Any], known: int) -> Event:
        """Read an event, when so many ids of the answer are known.

        Raises:
            KeyError, TypeError, ValueError: It is of an unknown form.
        """
        ...


class VllmDialogue:
    """vLLM: every event brings the new ids, and one after the last brings the counts."""

    path: ClassVar[str] = VllmDialect.path
    shapes: ClassVar[frozenset[str]] = frozenset({"stop_strings", "adjustments"})

    def body(self, request: GenerationRequest, room: int, stop_ids: tuple[int, ...]) -> dict[str, Any]:
        """A streamed completion."""
        body = VllmDialect().body(request, MODEL_NAME, room, stop_ids)
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        if request.stop_strings:
            body["stop"] = list(request.stop_strings)
        if (shaped := request.adjustments) is not None:
            body |= {
                "presence_penalty": shaped.presence_penalty,
                "frequency_penalty": shaped.frequency_penalty,
                "repetition_penalty": shaped.repetition_penalty,
                "logit_bias": {str(token): bias for token, bias in shaped.logit_bias.items()},
                "min_tokens": shaped.min_new_tokens,
            }
        return body

    def read(self, event: Mapping[str, Any], known: int) -> Event:
        """An event of the completions route."""
        ids: list[int] = []
        reason = None
        for choice in event["choices"]:
            ids += choice["token_ids"] or ()
            reason = choice["finish_reason"]
        return Event(ids=ids, finish_reason=reason, counts=step_counts(event))


class SglangDialogue:
    """SGLang's own route: an event holds all ids so far or the new ones, which its count tells apart.

    Args:
        server: Knows how its version tells verifications.
    """

    path: ClassVar[str] = SglangDialect.path
    shapes: ClassVar[frozenset[str]] = frozenset({"stop_strings"})

    def __init__(self, server: SglangServer, *, drafts: bool):
        self._server = server
        self._drafts = drafts

    def body(self, request: GenerationRequest, room: int, stop_ids: tuple[int, ...]) -> dict[str, Any]:
        """A streamed generation."""
        body = SglangDialect().body(request, MODEL_NAME, room, stop_ids)
        if request.stop_strings:
            body["sampling_params"]["stop"] = list(request.stop_strings)
        return {**body, "stream": True}

    def read(self, event: Mapping[str, Any], known: int) -> Event:
        """An event of the generate route."""
        told = event["meta_info"]
        total = int(told["completion_tokens"])
        new = total - known
        finish = told["finish_reason"]
        counts = None
        if finish and self._drafts:
            # Of an answer that prefill alone gave, it leaves the empty histogram out.
            counts = self._server.step_counts(told) if total > 1 else ((), ())
        return Event(
            ids=event["output_ids"][-new:] if new > 0 else (),
            finish_reason=finish["type"] if finish else None,
            counts=counts,
        )


def dialogue_with(server: VllmServer | SglangServer, *, drafts: bool) -> Dialogue:
    """How a server is spoken to."""
    return VllmDialogue() if isinstance(server, VllmServer) else SglangDialogue(server, drafts=drafts)

"""What a client may ask for, in OpenAI's terms. What this server cannot do is refused, never ignored.

A field that would change the answer is either honoured or refused by name; neutral values of fields that are
not supported (`frequency_penalty: 0`) are accepted, because clients send them.
"""

from abc import abstractmethod
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import from_json

from eagleray.serving.refusals import RefusalError
from eagleray.speculation.config import LogitAdjustments

RequestT = TypeVar("RequestT", bound="Generate")

SHOWN_CHARACTERS = 100
MAX_LOG_PROBABILITIES = 20
MAX_SEED = 2**63 - 1
MAX_TOKENS = 2**31 - 1
Ids = Annotated[list[Annotated[int, Field(ge=0, le=MAX_TOKENS)]], Field(min_length=1)]

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
}
"""Fields of OpenAI's API that this server does not honour, and the values that ask for nothing. null always
does."""
WITHOUT_EFFECT = frozenset({"user", "metadata", "store", "service_tier", "safety_identifier"})
"""Fields that say something of the request and nothing of the answer."""


class Part(BaseModel):
    """A piece of a message's content; text is the only kind."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["text"]
    text: str


class ChatMessage(BaseModel):
    """One turn."""

    model_config = ConfigDict(extra="forbid")

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] = ""
    name: str = ""

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, value: Any) -> Any:
        """Clients give back an assistant's turn as they got it, with a null for all it does not have."""
        return {k: v for k, v in value.items() if v is not None} if isinstance(value, dict) else value

    @property
    def text(self) -> str:
        """The content as one text."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content


class StreamOptions(BaseModel):
    """Settings of a streamed answer."""

    model_config = ConfigDict(extra="forbid")

    include_usage: bool = False


class Generate(BaseModel):
    """What both routes take."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str | None = None
    max_tokens: int | None = Field(default=None, ge=1, le=MAX_TOKENS)
    temperature: float = Field(default=1.0, ge=0.0, le=2.0, allow_inf_nan=False)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0, allow_inf_nan=False)
    top_k: int | None = Field(default=None, ge=1, le=MAX_TOKENS)
    min_p: float = Field(default=0.0, ge=0.0, le=1.0, allow_inf_nan=False)
    presence_penalty: float = Field(default=0.0, ge=-2.0, le=2.0, allow_inf_nan=False)
    frequency_penalty: float = Field(default=0.0, ge=-2.0, le=2.0, allow_inf_nan=False)
    repetition_penalty: float = Field(default=1.0, gt=0.0, le=1e3, allow_inf_nan=False)
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]] = {}
    """By token id, as JSON spells keys."""
    min_tokens: int = Field(default=0, ge=0, le=MAX_TOKENS)
    n: int = Field(default=1, ge=1)
    seed: int | None = Field(default=None, ge=-MAX_SEED, le=MAX_SEED)
    stop: list[str] = []
    stream: bool = False
    stream_options: StreamOptions | None = None
    draft_depth: int | None = Field(default=None, ge=0, le=MAX_TOKENS)
    """Extension: most draft tokens of a cycle, 0 for plain decoding."""
    return_token_ids: bool = False
    """Extension: also give the ids of each answer."""
    return_cycles: bool = False
    """Extension: also give the counts of each cycle."""

    @model_validator(mode="before")
    @classmethod
    def _null_is_default(cls, value: Any) -> Any:
        return {name: one for name, one in value.items() if one is not None}

    @field_validator("top_k", mode="before")
    @classmethod
    def _keep_all(cls, value: Any) -> Any:
        return None if value in (-1, 0) else value

    @field_validator("stop", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @field_validator("stop")
    @classmethod
    def _not_empty(cls, value: list[str]) -> list[str]:
        if "" in value:
            raise ValueError("an empty stop string would end every answer before it begins")
        return value

    @field_validator("logit_bias")
    @classmethod
    def _by_id(cls, value: dict[str, float]) -> dict[str, float]:
        if strange := [key for key in value if not (key.isascii() and key.isdigit() and len(key) < 10)]:
            raise ValueError(f"{strange[0][:SHOWN_CHARACTERS]!r} is not a token id")
        return value

    @model_validator(mode="after")
    def _options_need_a_stream(self) -> "Generate":
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options is given, but stream is not true")
        if self.stream and self.log_probabilities is not None:
            raise ValueError("logprobs are told of whole answers only; leave out stream or logprobs")
        return self

    @property
    @abstractmethod
    def log_probabilities(self) -> int | None:
        """How many of the likeliest tokens to tell at each place; None tells nothing."""

    @property
    def adjustments(self) -> LogitAdjustments | None:
        """Penalties and biases; None where nothing is adjusted."""
        asked = LogitAdjustments(
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            logit_bias={int(token): bias for token, bias in self.logit_bias.items()},
            min_new_tokens=self.min_tokens,
        )
        return None if asked == LogitAdjustments() else asked

    @property
    def include_usage(self) -> bool:
        """Whether a streamed answer ends with a chunk of usage."""
        return self.stream_options is not None and self.stream_options.include_usage


class ChatRequest(Generate):
    """Body of `/v1/chat/completions`."""

    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1, le=MAX_TOKENS)
    logprobs: bool = False
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOG_PROBABILITIES)

    @property
    def log_probabilities(self) -> int | None:
        """See `Generate`."""
        return self.top_logprobs or 0 if self.logprobs else None

    @property
    def new_tokens(self) -> int | None:
        """Bound on the answer; None: what the context window leaves."""
        return self.max_completion_tokens or self.max_tokens


class CompletionRequest(Generate):
    """Body of `/v1/completions`."""

    prompt: str | Ids | Annotated[list[str], Field(min_length=1)] | Annotated[list[Ids], Field(min_length=1)]
    max_tokens: int | None = Field(default=16, ge=1, le=MAX_TOKENS)
    logprobs: int | None = Field(default=None, ge=0, le=MAX_LOG_PROBABILITIES)

    @property
    def log_probabilities(self) -> int | None:
        """See `Generate`."""
        return self.logprobs

    @property
    def prompts(self) -> list[str | list[int]]:
        """One or several prompts, as texts or ids."""
        one = isinstance(self.prompt, str) or isinstance(self.prompt[0], int)
        return [self.prompt] if one else list(self.prompt)  # type: ignore[list-item,arg-type]

    @property
    def new_tokens(self) -> int | None:
        """Bound on each answer; None: what the context window leaves."""
        return self.max_tokens


def read_request(schema: type[RequestT], body: bytes) -> RequestT:
    """Read the body of a request.

    Raises:
        RefusalError: It is not JSON, or not what the route takes; names the field.
    """
    try:
        content = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise RefusalError(f"The body is not JSON: {error}.", code="invalid_json") from None
    if not isinstance(content, dict):
        raise RefusalError(
            f"The body is a JSON {type(content).__name__}; expected an object.", code="invalid_json"
        )
    for name in [name for name in content if name not in schema.model_fields]:
        if not _asks_for_nothing(name, content.pop(name)):
            raise RefusalError(_unsupported(name), param=_shown(name), code="unsupported_parameter")
    try:
        return schema.model_validate(content)
    except ValidationError as error:
        raise _refusal(error) from None


def _asks_for_nothing(name: str, value: Any) -> bool:
    neutral = NEUTRAL.get(name, ())
    # By type too: 0 asks for log probabilities, False does not.
    return (
        name in WITHOUT_EFFECT or value is None or any(type(value) is type(n) and value == n for n in neutral)
    )


def _unsupported(name: str) -> str:
    if name in NEUTRAL:
        return f"{name} is not supported by this server, and leaving it out would change the answer."
    return f"{_shown(name)!r} is not a field of this route; check its spelling."


def _refusal(error: ValidationError) -> RefusalError:
    problem = error.errors(include_url=False, include_context=False)[0]
    place = ".".join(map(str, problem["loc"]))
    field = str(problem["loc"][0]) if problem["loc"] else None
    if field == "prompt":
        return RefusalError(
            "prompt: expected a text, a list of token ids, or a list of either, none of them empty.",
            param="prompt",
        )
    message = problem["msg"].removeprefix("Value error, ").rstrip(".")
    seen = "" if problem["type"] == "missing" or field is None else f" (saw {_shown(repr(problem['input']))})"
    return RefusalError(f"{place}: {message}{seen}." if place else f"{message}.", param=field)


def _shown(text: str) -> str:
    """A client's own words, short enough to repeat."""
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "..."

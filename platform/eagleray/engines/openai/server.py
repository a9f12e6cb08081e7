"""Who answers at an address: which server, which model, which window, and whether it tells ids."""

import asyncio
import dataclasses
from dataclasses import dataclass

from pydantic import BaseModel

from eagleray.engines.base import GenerationRequest
from eagleray.engines.openai.client import RefusalError, ServerClient, ServerFaultError, open_client
from eagleray.engines.openai.config import OpenAIEngineConfig
from eagleray.engines.openai.dialects import (
    Dialect,
    PlainDialect,
    ServerAnswer,
    SglangDialect,
    VllmDialect,
)
from eagleray.errors import EngineError

_VERSION_PATHS = {"vllm": ("/version",), "sglang": ("/server_info", "/get_server_info")}


class _Model(BaseModel):
    id: str
    owned_by: str = ""
    max_model_len: int | None = None


class _Models(BaseModel):
    data: tuple[_Model, ...]


class _Version(BaseModel):
    version: str


@dataclass(frozen=True, kw_only=True)
class Server:
    """A server that has answered."""

    dialect: Dialect
    version: str
    """Empty where it does not tell."""
    model: str
    max_model_len: int | None
    """Prompt and answer together, in tokens; None where it does not tell."""


async def find_server(client: ServerClient) -> Server:
    """Ask who answers.

    Raises:
        EngineError: Nobody does, or the model is not served.
    """
    try:
        models = (await client.get("/v1/models", _Models.model_validate_json)).data
        model = _choose(models, client.config.url, client.config.model)
        version = await _version(client, model.owned_by)
    except (ServerFaultError, RefusalError) as error:
        raise unreachable(client, str(error)) from None
    return Server(
        dialect=_dialect(model.owned_by, version),
        version=version,
        model=model.id,
        max_model_len=model.max_model_len,
    )


async def probe_server(
    client: ServerClient, server: Server, probe: GenerationRequest, stop_ids: tuple[int, ...]
) -> Server:
    """Let a server answer; returns it as it is to be asked.

    Raises:
        EngineError: It does not answer, or refuses prompts of token ids.
    """
    plain = dataclasses.replace(server, dialect=PlainDialect(asks_log_probabilities=False))
    dialects = [server, plain] if isinstance(server.dialect, PlainDialect) else [server]
    refusal = ""
    for candidate in dialects:
        try:
            await ask(client, candidate, probe, 1, stop_ids)
        except RefusalError as error:
            refusal = str(error)
        except ServerFaultError as fault:
            raise unreachable(client, str(fault)) from None
        else:
            return candidate
    raise EngineError(
        f"The server at {client.config.url} refuses a prompt of one token id ({refusal}). EagleRay sends "
        "prompts as ids, so that they are those of the target's chat template: use a server that takes them "
        "at /v1/completions, such as vLLM or SGLang."
    )


def server_name(config: OpenAIEngineConfig) -> str:
    """Ask for kind and version of the server at an address.

    Raises:
        EngineError: Nobody answers, or the model is not served.
    """

    async def find() -> Server:
        async with open_client(config) as client:
            return await find_server(client)

    server = asyncio.run(find())
    return f"{server.dialect.kind} {server.version}".strip()


async def ask(
    client: ServerClient,
    server: Server,
    request: GenerationRequest,
    max_tokens: int,
    stop_ids: tuple[int, ...],
    *,
    patient: bool = True,
) -> ServerAnswer:
    """Let the server answer.

    Raises:
        RefusalError: It will never answer this request.
        ServerFaultError: It did not answer, however often it was asked.
        EngineError: It refuses the key or does not know the model.
    """
    dialect = server.dialect
    body = dialect.body(request, server.model, max_tokens, stop_ids)
    return await client.post(dialect.path, body, dialect.read, patient=patient)


def unreachable(client: ServerClient, last_error: str) -> EngineError:
    """The error of a server that is down."""
    config = client.config
    return EngineError(
        f"The server at {config.url} does not answer; the last of {config.max_retries + 1} tries gave: "
        f"{last_error}. Check that it runs and can be reached from this machine (curl {config.url}/v1/models "
        "and the server's log), then run the job again; `url`, `request_timeout_s` and `max_retries` of this "
        "engine are the settings."
    )


def _choose(models: tuple[_Model, ...], url: str, wanted: str | None) -> _Model:
    served = ", ".join(model.id for model in models) or "none"
    if wanted is not None:
        for model in models:
            if model.id == wanted:
                return model
        raise EngineError(f"The server at {url} does not serve {wanted!r}. Set `model` to one of: {served}.")
    if len(models) != 1:
        raise EngineError(
            f"The server at {url} serves {len(models)} models. Set `model` of the engine to one of: {served}."
        )
    return models[0]


async def _version(client: ServerClient, owner: str) -> str:
    for path in _VERSION_PATHS.get(owner, ()):
        try:
            return (await client.get(path, _Version.model_validate_json)).version
        except (EngineError, RefusalError):
            continue  # hidden behind a gateway, or a path of other versions
    return ""


def _dialect(owner: str, version: str) -> Dialect:
    if owner == "vllm":
        return VllmDialect()
    # SGLang's own route lies beside that of its version: a gateway that hides one hides the other.
    return SglangDialect() if owner == "sglang" and version else PlainDialect()

"""OpenAI's own Python client, unmodified, against the endpoint over a real socket."""

import openai
import pytest

MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def client(serve, listen, monkeypatch):
    """The client, told nothing but an address and a key."""
    monkeypatch.setenv("SERVE_KEY", "sesame")
    address = listen(serve("one two three", block=2, api_key_env="SERVE_KEY"))
    return openai.OpenAI(base_url=f"{address}/v1", api_key="sesame", max_retries=0)


def test_a_chat_is_answered_with_usage_and_speculation_beside_it(client):
    raw = client.chat.completions.with_raw_response.create(
        model="scripted", messages=MESSAGES, temperature=0, max_tokens=40
    )
    answer = raw.parse()
    assert answer.choices[0].message.content == "one two three"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens == 4
    assert answer.speculation["acceptance_length"] == float(raw.headers["x-speculation-acceptance-length"])


def test_a_stream_is_read_piece_by_piece_and_ends_with_usage(client):
    stream = client.chat.completions.create(
        model="scripted", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = stream
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "one two three"
    assert (last.choices, last.usage.completion_tokens) == ([], 4)


def test_a_completion_stops_where_it_is_told_to(client):
    answer = client.completions.create(model="scripted", prompt="Hi", stop=["two"], max_tokens=40, logprobs=1)
    assert answer.choices[0].text == "one "
    assert len(answer.choices[0].logprobs.token_logprobs) == answer.usage.completion_tokens


def test_models_are_listed_and_fetched(client):
    assert [model.id for model in client.models.list()] == ["scripted"]
    assert client.models.retrieve("scripted").owned_by == "eagleray"


def test_refusals_are_the_errors_that_the_client_knows(client):
    with pytest.raises(openai.NotFoundError, match="another one was asked for"):
        client.completions.create(model="gpt", prompt="Hi")
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="scripted", messages=MESSAGES, tools=[{"type": "function"}])
    assert refused.value.param == "tools"
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()

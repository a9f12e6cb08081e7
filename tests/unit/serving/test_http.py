"""The endpoint, seen by its clients: answers, streams, accounts, limits and errors."""

import pytest

BLOCKS = (0, 1, 3, 8)
KEY = "s3cret"


def test_a_chat_is_answered_with_usage_and_what_was_speculated(serve):
    client = serve("one two three", block=2)
    body = {"messages": [{"role": "user", "content": "Hi"}], "model": "scripted"}
    response = client.post("/v1/chat/completions", body)
    assert response.status_code == 200
    answer = response.json()
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"] == {
        "role": "assistant",
        "content": "one two three",
        "refusal": None,
    }
    assert answer["choices"][0]["finish_reason"] == "stop"
    # Four tokens: prefill gives the first, one cycle the other three, of which the last is the bonus.
    assert answer["usage"]["completion_tokens"] == 4
    assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] + 4
    assert answer["speculation"] == {
        "cycles": 1,
        "drafted_tokens": 2,
        "accepted_tokens": 2,
        "delivered_tokens": 3,
        "acceptance_length": 3.0,
        "acceptance_rate_by_slot": [1.0, 1.0],
        "lossy": False,
    }
    assert response.headers["x-speculation-acceptance-length"] == "3"
    assert response.headers["x-speculation-drafted-tokens"] == "2"


def test_plain_decoding_has_an_acceptance_length_of_one(serve):
    speculation = serve("one two three").complete().json()["speculation"]
    assert (speculation["acceptance_length"], speculation["drafted_tokens"]) == (1.0, 0)


@pytest.mark.parametrize("block", BLOCKS)
def test_a_stream_says_what_the_whole_answer_says(serve, events, block):
    client = serve("Go \U0001f469\u200d\U0001f680! and on, e\u0301 and so forth", block=block)
    whole = client.complete().json()
    chunks = events(client.complete(stream=True, stream_options={"include_usage": True}))
    assert "".join(c["choices"][0]["text"] for c in chunks[:-1]) == whole["choices"][0]["text"]
    assert not any("\ufffd" in c["choices"][0]["text"] for c in chunks[:-1])
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == whole["usage"]
    assert chunks[-1]["speculation"] == whole["speculation"]


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("tokens", [5, 40])
@pytest.mark.parametrize(
    "text",
    ["Go \U0001f469\u200d\U0001f680!", "e\u0301a", "\U0001f3f3\ufe0f\u200d\U0001f308", "\u65e5\u672c\u8a9e"],
)
def test_characters_of_several_tokens_come_whole_and_once_wherever_the_answer_is_cut(
    serve, events, text, tokens, block
):
    client = serve(text, block=block)
    whole = client.complete(max_tokens=tokens).json()["choices"][0]["text"]
    chunks = events(client.complete(max_tokens=tokens, stream=True))
    told = [chunk["choices"][0]["text"] for chunk in chunks]
    assert "".join(told) == whole
    if tokens == 40:
        assert whole == text
        assert not any("\ufffd" in piece for piece in told)


def test_tokens_are_counted_by_ids_and_not_by_chunks(serve, events):
    counts = {}
    for block in (1, 4):
        chunks = events(
            serve("one two three four five six seven", block=block).complete(
                stream=True, stream_options={"include_usage": True}, return_token_ids=True
            )
        )
        assert sum(len(c["choices"][0]["token_ids"]) for c in chunks[:-1]) == 8
        assert [bool(c["choices"]) for c in chunks].count(False) == 1
        counts[block] = (len(chunks), chunks[-1]["usage"]["completion_tokens"])
    assert counts[4][0] < counts[1][0]
    assert counts[4][1] == counts[1][1] == 8


def test_a_streamed_chat_begins_with_its_role_and_has_no_usage_unless_asked(serve, events):
    client = serve("one two")
    chunks = events(
        client.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "stream": True})
    )
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == "one two"
    assert not any("usage" in chunk for chunk in chunks)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize(("stop", "text", "tokens"), [("END", "one two ", 3), ("o E", "one tw", 3)])
def test_a_stop_string_gives_the_same_answer_for_every_block(
    serve, events, block, stop, text, tokens, stream
):
    client = serve("one two END three four five six", block=block)
    response = client.complete(
        stop=stop, stream=stream, **({"stream_options": {"include_usage": True}} if stream else {})
    )
    if stream:
        chunks = events(response)
        said, usage, facts = (
            "".join(c["choices"][0]["text"] for c in chunks[:-1]),
            chunks[-1]["usage"],
            chunks[-1]["speculation"],
        )
        reason = chunks[-2]["choices"][0]["finish_reason"]
    else:
        answer = response.json()
        said, usage, facts = answer["choices"][0]["text"], answer["usage"], answer["speculation"]
        reason = answer["choices"][0]["finish_reason"]
    assert (said, reason, usage["completion_tokens"]) == (text, "stop", tokens)
    # What lies behind the stop string was verified and is not counted.
    assert facts["delivered_tokens"] == tokens - 1


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("tokens", [1, 2, 5])
def test_max_tokens_is_never_overshot(serve, block, tokens):
    answer = serve("one two three four five six seven", block=block).complete(max_tokens=tokens).json()
    assert answer["usage"]["completion_tokens"] == tokens
    assert answer["choices"][0]["finish_reason"] == "length"


def test_several_prompts_and_choices_are_answered_in_order(serve):
    client = serve("one")
    answer = client.complete(prompt=["a", "b"], n=2, temperature=1, seed=7, return_token_ids=True).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    asked = [(len(request.prompt_ids), request.seed) for request in client.stream.seen]
    assert asked == [(1, 7), (1, 8), (1, 7), (1, 8)]
    # Every prompt counts once.
    assert answer["usage"]["prompt_tokens"] == 2


def test_ids_and_cycles_are_given_where_asked_for(serve, chat):
    answer = serve("one two three", block=1).complete(return_token_ids=True, return_cycles=True).json()
    choice = answer["choices"][0]
    assert choice["token_ids"] == [*chat.encode("one two three"), 2]
    assert choice["cycles"] == {"drafted": [1, 1], "accepted": [1, 1], "delivered": [2, 1]}


def test_log_probabilities_come_in_the_form_of_each_route(serve):
    client = serve("one two")
    told = client.complete(logprobs=2).json()["choices"][0]["logprobs"]
    assert told["tokens"] == ["one", " two", "<|im_end|>"]
    assert told["token_logprobs"] == [-0.5] * 3
    assert told["text_offset"] == [0, 3, 7]
    assert [len(likeliest) for likeliest in told["top_logprobs"]] == [2, 2, 2]
    body = {"messages": [{"role": "user", "content": "Hi"}], "logprobs": True, "top_logprobs": 1}
    content = client.post("/v1/chat/completions", body).json()["choices"][0]["logprobs"]["content"]
    assert [(token["token"], token["logprob"]) for token in content][1] == (" two", -0.5)
    assert content[0]["bytes"] == list(b"one")
    assert len(content[0]["top_logprobs"]) == 1
    assert client.complete().json()["choices"][0]["logprobs"] is None


def test_what_shapes_an_answer_reaches_the_engine(serve):
    client = serve()
    client.complete(frequency_penalty=1.5, logit_bias={"5": -100}, min_tokens=6, top_k=-1, min_p=0.1)
    asked = client.stream.seen[0]
    assert asked.adjustments.frequency_penalty == 1.5
    assert asked.adjustments.logit_bias == {5: -100}
    assert asked.adjustments.min_new_tokens == 6
    assert (asked.sampling.top_k, asked.sampling.min_p) == (None, 0.1)
    client.complete(frequency_penalty=0, logit_bias={})
    assert client.stream.seen[1].adjustments is None


@pytest.mark.parametrize(("prompt_tokens", "status"), [(58, 200), (62, 200), (63, 200), (64, 400), (65, 400)])
def test_the_context_window_ends_an_answer_and_refuses_a_prompt_that_fills_it(serve, prompt_tokens, status):
    response = serve(list(range(100, 200)), block=4).complete(prompt=[7] * prompt_tokens, max_tokens=None)
    assert response.status_code == status
    if status == 200:
        assert response.json()["usage"]["total_tokens"] == 64
        assert response.json()["choices"][0]["finish_reason"] == "length"
    else:
        message = response.json()["error"]["message"]
        assert str(prompt_tokens) in message
        assert "64" in message


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"prompt": ""}, 400, None),
        ({"prompt": [10**6]}, 400, None),
        ({"prompt": "Hi", "model": "another"}, 404, "model"),
        ({"prompt": "Hi", "n": 99}, 400, "n"),
        ({"prompt": "Hi", "stop": ["x"] * 99}, 400, "stop"),
        ({"prompt": "Hi", "stop": "x" * 9999}, 400, "stop"),
        ({"prompt": "Hi", "logit_bias": {"1": 500}}, 400, "logit_bias"),
        ({"prompt": "Hi", "logprobs": 1, "stream": True}, 400, None),
    ],
)
def test_errors_are_json_that_names_the_field(serve, body, status, param):
    client = serve()
    response = client.post("/v1/completions", body)
    assert response.status_code == status
    error = response.json()["error"]
    assert error["param"] == param
    assert client.complete().status_code == 200


def test_a_template_that_cannot_show_the_turns_refuses_them(serve):
    body = {"messages": [{"role": "system", "content": ""}, {"role": "tool", "content": "7"}]}
    assert serve().post("/v1/chat/completions", body).status_code in (200, 400)


def test_a_body_that_is_too_large_or_not_json_is_refused(serve):
    client = serve(limits={"max_body_bytes": 100})
    assert client.complete(prompt="x" * 100).status_code == 413
    assert (
        client.send(
            "POST", "/v1/completions", content=b"{}", headers={"content-type": "text/csv"}
        ).status_code
        == 415
    )
    assert client.send("POST", "/v1/completions", content=b"{").json()["error"]["code"] == "invalid_json"


def test_unknown_paths_and_methods_are_answered_in_json(serve):
    client = serve()
    assert client.send("GET", "/etc/passwd").json()["error"]["code"] == "404"
    assert client.send("GET", "/v1/completions").status_code == 405
    assert client.send("GET", "/v1/models/../../secret").status_code == 404


def test_more_answers_than_may_wait_are_refused_with_429(serve):
    client = serve(engine={"name": "native", "max_batch_size": 2}, limits={"max_queued_requests": 1})
    client.stream.gate.clear()
    threading_release(client)
    body = {"json": {"prompt": "Hi", "temperature": 0}}
    responses = client.send_all([("POST", "/v1/completions", body)] * 5)
    codes = sorted(response.status_code for response in responses)
    assert codes == [200, 200, 200, 429, 429]
    refused = next(response for response in responses if response.status_code == 429)
    assert refused.headers["retry-after"] == "1"
    assert client.complete().status_code == 200


def threading_release(client) -> None:
    """Let the engine go on once three answers are unfinished and all five requests were taken in."""
    import threading

    threading.Timer(0.3, client.stream.gate.set).start()


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_takes_too_long_is_ended_and_its_slot_freed(serve, stream):
    client = serve(limits={"request_timeout_s": 0.05})
    client.stream.gate.clear()
    response = client.complete(stream=stream)
    client.stream.gate.set()
    assert response.status_code == 504
    assert response.json()["error"]["type"] == "timeout_error"
    assert client.service.unfinished == 0


@pytest.mark.parametrize("stream", [False, True])
def test_what_fails_in_the_engine_is_a_500_that_tells_nothing_of_the_inside(serve, stream):
    client = serve()
    client.stream.failing = "secret /path/to/model"
    response = client.complete(stream=stream)
    assert response.status_code == 500
    assert "secret" not in response.text


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_engine_that_breaks_fails_every_answer_and_health(serve):
    client = serve()
    assert client.send("GET", "/health").json()["status"] == "healthy"
    client.stream.broken = True
    assert client.complete().status_code == 503
    assert client.send("GET", "/health").status_code == 503
    assert client.complete().status_code == 503


def test_without_the_bearer_token_nothing_is_answered_but_health(serve, monkeypatch):
    monkeypatch.setenv("SERVE_KEY", KEY)
    client = serve(api_key_env="SERVE_KEY")
    for headers in (
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": KEY},
        {"authorization": "Bearer"},
    ):
        assert client.complete_with(headers).status_code == 401
        assert client.send("GET", "/v1/models", headers=headers).status_code == 401
    assert client.complete_with({"authorization": f"Bearer {KEY}"}).status_code == 200
    assert client.send("GET", "/health").status_code == 200


def test_models_are_listed_in_the_form_of_openai(serve):
    client = serve()
    listed = client.send("GET", "/v1/models").json()
    assert [model["id"] for model in listed["data"]] == ["scripted"]
    assert listed["data"][0]["max_model_len"] == 64
    assert client.send("GET", "/v1/models/scripted").json() == listed["data"][0]


def test_totals_are_kept(serve):
    client = serve("one two three", block=2)
    client.complete()
    client.complete()
    totals = client.send("GET", "/v1/speculation").json()
    assert (totals["requests"], totals["completion_tokens"], totals["unfinished"]) == (2, 8, 0)
    assert totals["acceptance_length"] == 3.0
    assert "bonus token included" in totals["acceptance_length_definition"]

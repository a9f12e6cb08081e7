"""The engine over HTTP against real servers on this machine: ids, faults, and who is at fault."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from eagleray.engines.base import FailedRequest, Generation, GenerationRequest, RequestStream
from eagleray.engines.catalog import build_engine, engine_version
from eagleray.engines.openai.config import OpenAIEngineConfig
from eagleray.errors import EngineError
from eagleray.speculation.config import SamplingConfig
from tests.unit.engines.openai.reactions import body, hang_up, sleep_on, status

LENGTHS = [3, 9, 1, 20, 5, 14]


def finish(stream: RequestStream) -> dict[str, Generation | FailedRequest]:
    """Advance until nothing is unfinished; outcomes by request."""
    outcomes: dict[str, Generation | FailedRequest] = {}
    while stream.unfinished:
        for outcome in stream.advance():
            assert outcome.request_id not in outcomes
            outcomes[outcome.request_id] = outcome
    return outcomes


def run(engine: Any, requests: list[GenerationRequest]) -> dict[str, Generation | FailedRequest]:
    stream = engine.open_stream()
    for request in requests:
        stream.submit(request)
    return finish(stream)


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_emitted_ids_and_finish_reasons_arrive_as_they_are(
    serve: Any, connect: Any, target: Any, make_requests: Any, kind: str
) -> None:
    requests = make_requests(LENGTHS)
    run = connect(serve(kind)).generate(requests)
    assert {generation.finish_reason for generation in run.generations} == {"stop", "length"}
    for generation, expected in zip(run.generations, target.answers(requests), strict=True):
        assert generation.answer_ids == expected.answer_ids
        assert generation.prompt_ids == expected.prompt_ids
        assert generation.finish_reason == expected.finish_reason
        assert (generation.origin, generation.cycles) == ("target", ())


def test_text_alone_is_tokenised_again_and_gets_its_end_back(
    serve: Any, connect: Any, target: Any, make_requests: Any
) -> None:
    requests = make_requests(LENGTHS)
    generations = connect(serve("plain")).generate(requests).generations
    assert [one.answer_ids for one in generations] == [one.answer_ids for one in target.answers(requests)]
    assert {one.origin for one in generations} == {"retokenised"}
    ended = [one.answer_ids[-1] == target.stop_id for one in generations]
    assert ended == [one.finish_reason == "stop" for one in generations]


@pytest.mark.parametrize("pieces", [True, False])
def test_ids_that_the_server_did_not_emit_are_called_mismatched(
    serve: Any, connect: Any, ambiguous_target: Any, make_requests: Any, pieces: bool
) -> None:
    requests = make_requests([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], max_new_tokens=6)
    server = serve("plain", ambiguous_target, pieces=pieces)
    generations = connect(server).generate(requests).generations
    emitted = [one.answer_ids for one in ambiguous_target.answers(requests)]
    origins = [one.origin for one in generations]
    same = [one.answer_ids == ids for one, ids in zip(generations, emitted, strict=True)]
    assert "mismatched" in origins
    if pieces:
        assert [origin == "retokenised" for origin in origins] == same
    else:  # a count cannot tell apart spellings of one length
        assert all(
            origin == "mismatched" or len(one.answer_ids) == len(ids)
            for origin, one, ids in zip(origins, generations, emitted, strict=True)
        )
        assert all(origin == "retokenised" for origin, alike in zip(origins, same, strict=True) if alike)


def test_an_answer_that_nothing_confirms_counts_as_mismatched(
    serve: Any, connect: Any, make_requests: Any
) -> None:
    server = serve("plain", pieces=False, usage=False)
    (generation,) = connect(server).generate(make_requests([4])).generations
    assert generation.origin == "mismatched"


def test_every_sampling_setting_is_sent(serve: Any, connect: Any) -> None:
    sampling = SamplingConfig(temperature=0.5, top_k=7, top_p=0.9, min_p=0.1)
    request = GenerationRequest(
        request_id="a", prompt_ids=(1, 2), max_new_tokens=500, sampling=sampling, seed=11
    )
    server = serve("vllm")
    connect(server).generate([request])
    (sent,) = server.bodies
    stop_ids = sent.pop("stop_token_ids")
    assert stop_ids == [server.target.stop_id]
    assert sent == {
        "model": "tiny",
        "prompt": [1, 2],
        "max_tokens": 62,  # what the window of 64 leaves
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "seed": 11,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "skip_special_tokens": False,
        "return_token_ids": True,
    }
    server = serve("sglang")
    connect(server).generate([request])
    settings = server.bodies[0]["sampling_params"]
    assert (settings["sampling_seed"], settings["top_k"], settings["min_p"]) == (11, 7, 0.1)
    server = serve("plain")
    engine = connect(server)
    with pytest.raises(EngineError, match="only vLLM and SGLang know"):
        engine.generate([request])
    plain = GenerationRequest(
        request_id="a", prompt_ids=(1, 2), max_new_tokens=3, sampling=SamplingConfig(temperature=0.5)
    )
    engine.generate([plain])
    assert server.bodies[0].keys() == {
        "model",
        "prompt",
        "max_tokens",
        "temperature",
        "top_p",
        "seed",
        "logprobs",
    }


def test_greedy_requests_carry_no_seed_and_filter_nothing(serve: Any, connect: Any) -> None:
    for kind in ("vllm", "sglang"):
        server = serve(kind)
        connect(server).generate([GenerationRequest(request_id="a", prompt_ids=(1,), max_new_tokens=2)])
        settings = server.bodies[0].get("sampling_params", server.bodies[0])
        assert settings["temperature"] == 0.0
        assert settings["top_k"] == -1
        assert not {"seed", "sampling_seed"} & settings.keys()


def test_a_plain_server_that_refuses_log_probabilities_is_asked_without(
    serve: Any, connect: Any, make_requests: Any
) -> None:
    server = serve("plain")
    server.hook = lambda sent: status(400, "no logprobs here") if "logprobs" in sent else None
    (generation,) = connect(server).generate(make_requests([4])).generations
    assert generation.origin == "retokenised"
    assert "logprobs" not in server.bodies[0]


def test_a_server_that_refuses_ids_is_refused(serve: Any, connect: Any) -> None:
    server = serve("plain")
    server.hook = lambda sent: status(422, "prompt must be a string")
    with pytest.raises(EngineError, match=r"refuses a prompt of one token id .*must be a string"):
        connect(server)


def test_the_model_is_found_chosen_or_listed(serve: Any, connect: Any) -> None:
    two = serve("vllm", models=["a", "b"])
    with pytest.raises(EngineError, match=r"serves 2 models\. Set `model` of the engine to one of: a, b"):
        connect(two)
    with pytest.raises(EngineError, match=r"does not serve 'c'\. Set `model` to one of: a, b"):
        connect(two, model="c")
    connect(two, model="b").generate([GenerationRequest(request_id="x", prompt_ids=(1,), max_new_tokens=1)])
    assert two.bodies[0]["model"] == "b"


def test_the_regime_names_kind_and_version_of_the_server(serve: Any) -> None:
    names = [engine_version(OpenAIEngineConfig(url=serve(kind).url)) for kind in ("vllm", "sglang", "plain")]
    assert names == ["vllm 1.2.3", "sglang 1.2.3", "plain"]


def test_the_key_comes_from_the_environment_and_stays_out_of_messages(
    serve: Any, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve("vllm")
    with pytest.raises(EngineError, match=r"environment variable MY_KEY.* is not set"):
        connect(server, api_key_env="MY_KEY")
    monkeypatch.setenv("MY_KEY", "top-secret")
    engine = connect(server, api_key_env="MY_KEY")
    engine.generate([GenerationRequest(request_id="x", prompt_ids=(1,), max_new_tokens=1)])
    assert server.headers[0]["Authorization"] == "Bearer top-secret"
    server.hook = lambda sent: status(401, "bad key")
    with pytest.raises(EngineError, match=r"refuses the API key \(HTTP 401: bad key\).*'MY_KEY'") as caught:
        engine.generate([GenerationRequest(request_id="x", prompt_ids=(1,), max_new_tokens=1)])
    assert "top-secret" not in str(caught.value)


@pytest.mark.parametrize(
    "fault",
    [
        status(429, "slow down", **{"Retry-After": "0"}),
        status(429, "slow down", **{"Retry-After": "Wed, 21 Oct 2099 07:28:00 GMT"}),
        status(503),
        hang_up,
        body("{"),
        body("[]"),
        body('{"choices": []}'),
        body('{"choices": [{"text": "x", "finish_reason": "abort"}]}'),
        body('{"choices": [{"text": "x", "finish_reason": null}]}'),
    ],
)
def test_what_passes_is_tried_again(
    serve: Any, connect: Any, target: Any, make_requests: Any, fault: Any
) -> None:
    server = serve("vllm")
    engine = connect(server)
    server.reactions = [fault, fault]
    requests = make_requests([4])
    assert engine.generate(requests).generations[0].answer_ids == target.answers(requests)[0].answer_ids
    assert len(server.bodies) == 3


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (status(500, "out of memory"), "HTTP 500: out of memory"),
        (hang_up, "Disconnected"),
        (body("<html>"), "not one"),
    ],
)
def test_a_server_that_answers_nothing_any_more_is_an_error_that_says_what_to_check(
    serve: Any, connect: Any, make_requests: Any, fault: Any, said: str
) -> None:
    server = serve("vllm")
    engine = connect(server)
    server.hook = lambda sent: fault
    stream = engine.open_stream()
    for request in make_requests([4, 5, 6]):
        stream.submit(request)
    with pytest.raises(
        EngineError, match=f"{server.url} does not answer; the last of 3 tries gave: .*{said}"
    ):
        finish(stream)
    assert stream.unfinished == 0


def test_nobody_at_the_address_is_an_error(serve: Any, target: Any) -> None:
    config = OpenAIEngineConfig(url="http://127.0.0.1:9", max_retries=0)
    with pytest.raises(EngineError, match=r"http://127\.0\.0\.1:9 does not answer.*Check that it runs"):
        build_engine(config, target.folder, "float32")
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("engine at")]


@pytest.mark.parametrize("fault", [status(500, "poisoned"), hang_up, sleep_on])
def test_one_request_that_always_fails_costs_itself_alone(
    serve: Any, connect: Any, target: Any, make_requests: Any, fault: Any
) -> None:
    server = serve("vllm")
    engine = connect(server, request_timeout_s=2.0)
    requests = make_requests(LENGTHS)
    poisoned = list(requests[2].prompt_ids)
    server.hook = lambda sent: fault if sent["prompt"] == poisoned else None
    outcomes = run(engine, requests)
    failed = outcomes.pop("r2")
    assert isinstance(failed, FailedRequest)
    assert "though the server answers other requests" in failed.reason
    expected = {one.request_id: one.answer_ids for one in target.answers(requests) if one.request_id != "r2"}
    assert {name: one.answer_ids for name, one in outcomes.items()} == expected


@pytest.mark.parametrize(
    ("reaction", "reason"),
    [
        (status(400, "this prompt\nis bad " + "x" * 400), "HTTP 400: this prompt is bad xxx"),
        (body('{"choices": [{"text": "", "finish_reason": "content_filter"}]}'), "filtered"),
        (body('{"choices": [{"text": "", "finish_reason": "stop", "token_ids": [1, 2]}]}'), "no stop token"),
        (body('{"choices": [{"text": "", "finish_reason": "stop", "token_ids": []}]}'), "no stop token"),
        (
            body('{"choices": [{"text": "", "finish_reason": "length", "token_ids": [1, 2, 3, 4]}]}'),
            "gave 4 tokens; 3 were asked for",
        ),
    ],
)
def test_a_refused_request_carries_the_servers_words(
    serve: Any, connect: Any, make_requests: Any, reaction: Any, reason: str
) -> None:
    server = serve("vllm")
    engine = connect(server)
    server.reactions = [reaction]
    (failed,) = run(engine, make_requests([4], max_new_tokens=3)).values()
    assert isinstance(failed, FailedRequest)
    assert reason in failed.reason
    assert len(failed.reason) <= 200
    assert len(server.bodies) == 1, "asking again is of no use"


def test_never_more_requests_at_once_than_allowed(serve: Any, connect: Any, make_requests: Any) -> None:
    server = serve("vllm")
    engine = connect(server, max_concurrency=3)
    server.delay_s, server.most_running = 0.02, 0
    assert len(run(engine, make_requests([2] * 12))) == 12
    assert server.most_running == 3


def test_a_cancelled_request_is_withdrawn_from_the_server(
    serve: Any, connect: Any, make_requests: Any
) -> None:
    server = serve("vllm")
    engine = connect(server)
    requests = make_requests([2, 3, 4])
    asleep = list(requests[1].prompt_ids)
    server.hook = lambda sent: sleep_on if sent["prompt"] == asleep else None
    stream = engine.open_stream()
    for request in requests:
        stream.submit(request)
    outcomes: list[str] = []
    while len(outcomes) < 2:
        outcomes += [outcome.request_id for outcome in stream.advance()]
    assert stream.unfinished == 1
    stream.cancel("r1")
    stream.cancel("nobody")
    assert (stream.unfinished, stream.advance()) == (0, [])
    assert sorted(outcomes) == ["r0", "r2"]
    wait_for(lambda: server.disconnected == 1)
    stream.submit(GenerationRequest(request_id="r1", prompt_ids=(1,), max_new_tokens=1))
    assert finish(stream).keys() == {"r1"}


def wait_for(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_bad_requests_are_refused_at_once_and_the_stream_goes_on(
    serve: Any, connect: Any, make_requests: Any
) -> None:
    engine = connect(serve("vllm", window=16))
    stream = engine.open_stream()
    (good,) = make_requests([4])
    stream.submit(good)
    with pytest.raises(EngineError, match="still unfinished"):
        stream.submit(good)
    with pytest.raises(EngineError, match="window of 16"):
        stream.submit(make_requests([16])[0])
    with pytest.raises(EngineError, match="vocabulary is 0 to 299"):
        stream.submit(GenerationRequest(request_id="b", prompt_ids=(300,), max_new_tokens=1))
    outcomes = finish(stream)
    assert outcomes.keys() == {"r0"}
    answer = outcomes["r0"]
    assert isinstance(answer, Generation)
    assert stream.delivered_tokens == len(answer.answer_ids) - 1
    assert stream.times.verify_s > 0


def test_drafters_and_features_are_refused(serve: Any, connect: Any) -> None:
    engine = connect(serve("vllm"))
    with pytest.raises(EngineError, match=r"Features of layers \(0,\).*captures none"):
        engine.open_stream(capture_layers=(0,))
    with pytest.raises(EngineError, match="only the native engine drafts"):
        engine.open_stream(draft=object())


def test_closing_withdraws_what_is_unfinished(serve: Any, connect: Any, make_requests: Any) -> None:
    server = serve("vllm")
    engine = connect(server)
    server.hook = lambda sent: sleep_on
    stream = engine.open_stream()
    stream.submit(make_requests([2])[0])
    wait_for(lambda: server.running == 1)
    engine.close()
    engine.close()
    with pytest.raises(EngineError, match="was closed"):
        stream.advance()
    wait_for(lambda: server.disconnected == 1)

"""Clients that leave free what they held: over a real socket, streamed or not."""

import random
import time

import httpx
import pytest


def wait_until(condition, timeout_s=10.0):
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_slot(serve, listen, stream):
    client = serve("one two three")
    url = listen(client)
    client.stream.gate.clear()
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{url}/v1/completions", json={"prompt": "Hi", "stream": stream}, timeout=0.2)
    wait_until(lambda: client.service.unfinished == 0)
    client.stream.gate.set()
    wait_until(lambda: client.stream.cancelled or client.stream.unfinished == 0)
    assert httpx.post(f"{url}/v1/completions", json={"prompt": "Hi"}).status_code == 200


def test_a_client_that_leaves_in_the_middle_of_a_stream_frees_its_slot(serve, listen):
    client = serve(list(range(100, 160)))
    url = listen(client)
    body = {"prompt": "Hi", "stream": True, "max_tokens": 60}
    with httpx.stream("POST", f"{url}/v1/completions", json=body) as response:
        next(response.iter_lines())
        client.stream.gate.clear()
    wait_until(lambda: client.service.unfinished == 0)
    client.stream.gate.set()
    wait_until(lambda: client.stream.unfinished == 0)


def test_sixty_four_clients_that_leave_at_random_leave_nothing_behind(serve, listen):
    client = serve(list(range(100, 160)), limits={"max_queued_requests": 64})
    url = listen(client)
    draw = random.Random(0)
    from concurrent.futures import ThreadPoolExecutor

    def visit(number: int) -> str:
        body = {"prompt": f"{number}", "stream": number % 2 == 0, "max_tokens": draw.randint(1, 60)}
        try:
            with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=draw.uniform(0.05, 5)) as r:
                for _, _ in zip(range(draw.randint(0, 40)), r.iter_raw(), strict=False):
                    pass
                return str(r.status_code)
        except httpx.TimeoutException:
            return "left"

    with ThreadPoolExecutor(64) as pool:
        seen = set(pool.map(visit, range(64)))
    assert seen <= {"200", "429", "left"}
    wait_until(lambda: client.service.unfinished == 0)
    wait_until(lambda: client.stream.unfinished == 0)
    assert client.send("GET", "/health").json()["status"] == "healthy"
    assert httpx.post(f"{url}/v1/completions", json={"prompt": "Hi"}).status_code == 200

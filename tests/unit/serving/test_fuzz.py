"""Hostile requests get an answer with a reason, and leave the server as it was."""

import asyncio

import pytest

from jobs.hostile import attack, by_hand, draw_requests


def check(client, url, requests, leaving):
    outcome = asyncio.run(attack(url, requests, concurrency=16, leaving=leaving))
    assert outcome.faults == []
    assert outcome.unexplained_5xx == 0
    assert outcome.requests == len(requests)
    assert client.send("GET", "/health").json()["status"] == "healthy"
    assert client.complete().status_code == 200
    assert client.service.unfinished == 0
    return outcome


def test_what_has_broken_servers_before_does_not_break_this_one(serve, listen):
    client = serve(block=2, limits={"max_queued_requests": 1000})
    outcome = check(client, listen(client), by_hand(), leaving=0.0)
    assert outcome.statuses["200"] < len(by_hand()) / 3


def test_requests_drawn_from_the_schema_are_answered_or_refused(serve, listen):
    client = serve(block=2, limits={"max_queued_requests": 1000})
    outcome = check(client, listen(client), draw_requests(300, first_seed=1), leaving=0.1)
    assert outcome.statuses["200"] > 10
    assert outcome.statuses["400"] > 10


@pytest.mark.slow
def test_five_thousand_hostile_requests_leave_nothing_behind(serve, listen):
    client = serve(block=2, limits={"max_queued_requests": 1000})
    check(client, listen(client), draw_requests(5000, first_seed=2), leaving=0.1)

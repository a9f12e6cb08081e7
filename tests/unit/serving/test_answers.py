"""Answers as they grow: what a reader gets, and when."""

import asyncio

from eagleray.corpus.answer_text import AnswerText
from eagleray.engines.base import Generation
from eagleray.serving.answers import Answers
from eagleray.serving.loop import Update
from eagleray.serving.requests import CompletionRequest


def test_a_reader_who_is_slow_gets_what_it_missed_at_once(serve, chat):
    request = CompletionRequest.model_validate({"prompt": "Hi", "n": 2, "stream": True})
    ask = serve().service.asking.completion(request)
    ids = chat.encode("one two three four")
    texts = [AnswerText(chat.show, one.prompt_ids, ()) for one in ask.requests]

    async def read():
        updates: asyncio.Queue[Update] = asyncio.Queue()
        answers = Answers(ask, texts, lambda: True, updates, asyncio.get_running_loop().time() + 60)
        first, second = (one.request_id for one in ask.requests)
        updates.put_nowait(Update(request_id=first, ids=ids[:2]))
        batches = answers.pieces()
        read = [await anext(batches)]
        for name, rest in ((first, ids[2:]), (second, ids)):
            whole = Generation(
                request_id=name, prompt_ids=(1,), answer_ids=ids, finish_reason="stop", cycles=()
            )
            updates.put_nowait(Update(request_id=name, ids=rest[:1]))
            updates.put_nowait(Update(request_id=name, ids=rest[1:], outcome=whole))
        return [*read, *[batch async for batch in batches]]

    early, late = asyncio.run(read())
    assert [piece.index for piece in early] == [0]
    for index in (0, 1):
        told = [piece for piece in early + late if piece.index == index]
        assert "".join(piece.text for piece in told) == "one two three four"
        assert told[-1].finish_reason == "stop"

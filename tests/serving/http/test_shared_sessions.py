"""Legacy sessions that any of several replicas serves."""

from __future__ import annotations

from tests.serving.http.raw import message
from tests.serving.http.replicas import FleetScene, replicated
from tests.serving.http.scenes import SAMPLING, call, messages_in, next_message, rest_of, text_of
from trio.testing import MockClock


async def test_any_replica_serves_any_request_of_a_session(autojump_clock: MockClock) -> None:
    scene = FleetScene()
    async with replicated(scene.server) as endpoint:
        session = await endpoint.initialize()
        for number in range(6):
            answer = await endpoint.ask("POST", session, call("echo", number, text=str(number)))
            assert (answer.json["id"], text_of(answer.json)) == (number, str(number))


async def test_a_question_is_answered_through_another_replica(autojump_clock: MockClock) -> None:
    scene = FleetScene()
    async with replicated(scene.server) as endpoint:
        session = await endpoint.initialize(**SAMPLING)
        post = await endpoint.post(session, call("ask", name="asker"))
        await post.head()
        asked = await next_message(post)
        result = {"role": "assistant", "content": {"type": "text", "text": "well"}, "model": "m"}
        answered = await endpoint.ask("POST", session, {"jsonrpc": "2.0", "id": asked["id"], "result": result})
        assert answered.status == 202
        assert [text_of(reply) for reply in await rest_of(post)] == ["m has answered"]


async def test_a_level_that_one_replica_was_told_holds_for_the_logs_of_all(autojump_clock: MockClock) -> None:
    scene = FleetScene()
    async with replicated(scene.server) as endpoint:
        session = await endpoint.initialize()
        for level, logged in (("debug", ["debug", "error"]), ("critical", [])):
            answer = await endpoint.ask("POST", session, message("logging/setLevel", {"level": level}, 1))
            assert answer.json["result"] == {}
            for _ in range(3):
                answer = await endpoint.ask("POST", session, call("levels"))
                assert [each["params"]["level"] for each in messages_in(answer) if "method" in each] == logged

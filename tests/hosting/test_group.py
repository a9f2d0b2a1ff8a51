"""Members come and go, fail and hang, and nobody else notices."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import pytest
import trio
from tests.hosting.members import describe, greeter, hangs, refuses, serves, target_of, until
from tests.interaction.client.raw import RawPeer
from trio.testing import MockClock, Sequencer, wait_all_tasks_blocked

from trio_mcp import (
    ConnectionLost,
    KeepAlive,
    LogParams,
    MemberDescription,
    MemberState,
    MemberUnavailable,
    NotInCatalogue,
    PeerError,
    RequestContext,
    Server,
    open_group,
)


def in_memory(name: str = "greeter", **options: Any) -> MemberDescription:
    return MemberDescription(greeter(name), options={"era": "legacy", **options})  # type: ignore[typeddict-item]


# Calling


async def test_a_tool_is_called_by_its_name_in_the_catalogue(autojump_clock: MockClock) -> None:
    async with open_group({"a": in_memory("a"), "b": in_memory("b")}) as group:
        assert (await group.call_tool("a__greet")).text == "hello from a"
        assert (await group.call_tool("b__greet")).text == "hello from b"


async def test_a_member_is_added_from_any_task_and_outlives_it(autojump_clock: MockClock) -> None:
    async with open_group() as group, trio.open_nursery() as nursery:

        async def add() -> None:
            group.add("late", in_memory())

        nursery.start_soon(add)
        await wait_all_tasks_blocked()
        assert (await group.call_tool("late__greet")).text == "hello from greeter"


async def test_a_member_outlives_the_scope_in_which_it_was_added(autojump_clock: MockClock) -> None:
    async with open_group() as group:
        with trio.move_on_after(1):
            group.add("late", in_memory())
            await trio.sleep_forever()
        await trio.sleep(3)
        assert (await group.call_tool("late__greet")).text == "hello from greeter"


async def test_a_member_gets_nothing_of_the_context_of_the_task_that_adds_it(autojump_clock: MockClock) -> None:
    who = ContextVar("who", default="nobody")
    seen: list[str] = []
    server = Server("s")

    @server.tool
    async def look(ctx: RequestContext) -> None:
        await ctx.log.error("look")

    def on_log(_: LogParams) -> None:
        seen.append(who.get())

    async with open_group() as group:
        who.set("somebody")
        group.add("s", MemberDescription(server, options={"on_log": on_log, "era": "legacy"}))
        await group.call_tool("s__look")
    assert seen == ["nobody"]


async def test_a_call_to_a_member_that_is_starting_waits_for_it(autojump_clock: MockClock) -> None:
    async def slow(peer: RawPeer) -> None:
        await trio.sleep(30)
        await serves("echo")(peer)

    async with open_group({"slow": describe(slow)}) as group:
        assert (await group.call_tool("slow__echo")).text == "echo"
        assert trio.current_time() == pytest.approx(30)


async def test_what_nobody_offers_is_not_in_the_catalogue(autojump_clock: MockClock) -> None:
    async with open_group({"a": in_memory()}) as group:
        for name in ("a__shout", "b__greet", "greet", "", "a__"):
            with pytest.raises(NotInCatalogue):
                await group.call_tool(name)
        with pytest.raises(NotInCatalogue):
            await group.get_prompt("a__greet")
        with pytest.raises(NotInCatalogue, match="member://files/"):
            await group.read_resource("note://motto")


async def test_a_name_that_cannot_be_of_a_member_does_not_wait_for_it(autojump_clock: MockClock) -> None:
    async with open_group({"slow": describe(hangs), "a": in_memory()}) as group:
        with trio.fail_after(1), pytest.raises(NotInCatalogue):
            await group.call_tool("a__shout")


async def test_prompts_and_resources_are_routed_too(autojump_clock: MockClock) -> None:
    server = Server("library")

    @server.prompt
    async def greet(name: str) -> str:
        return f"Greet {name}."

    @server.resource("note://motto")
    async def motto() -> str:
        return "never late"

    @server.resource("note://by/{author}")
    async def by(author: str) -> str:
        return f"by {author}"

    async with open_group({"my library": MemberDescription(server)}) as group:
        await group.settled()
        (prompt,) = group.catalogue.prompts
        assert (await group.get_prompt(prompt, {"name": "Ann"})).messages[0].content.text == "Greet Ann."  # type: ignore[union-attr]
        (uri,) = group.catalogue.resources
        assert uri == "member://my%20library/note://motto"
        assert (await group.read_resource(uri)).contents[0].text == "never late"  # type: ignore[union-attr]
        (template,) = group.catalogue.resource_templates
        read = await group.read_resource(template.replace("{author}", "ann"))
        assert read.contents[0].text == "by ann"  # type: ignore[union-attr]
        with pytest.raises(MemberUnavailable):
            await group.read_resource("member://nobody/note://motto")


async def test_progress_and_meta_go_through(autojump_clock: MockClock) -> None:
    server, seen, metas = Server("s"), list[float](), list[Any]()

    @server.tool
    async def work(ctx: RequestContext) -> None:
        metas.append(ctx.meta["example.com/who"])
        ctx.progress(1)

    async with open_group({"s": MemberDescription(server)}) as group:
        await group.call_tool("s__work", on_progress=lambda p: seen.append(p.progress), meta={"example.com/who": "me"})
    assert (seen, metas) == ([1], ["me"])


async def test_options_of_the_group_are_those_of_members_that_do_not_say_otherwise(autojump_clock: MockClock) -> None:
    members = {"short": in_memory(), "long": in_memory(call_timeout=100)}
    async with open_group(members, call_timeout=5) as group:
        assert (await group.call_tool("long__sleep", {"seconds": 50})).text == "slept"
        with pytest.raises(trio.TooSlowError):
            await group.call_tool("short__sleep", {"seconds": 50})


# One that fails


@pytest.mark.parametrize(
    ("script", "error"),
    [(refuses, PeerError), (RawPeer.close, ConnectionLost), (hangs, ConnectionLost)],
    ids=["refuses", "dies", "hangs"],
)
async def test_one_that_does_not_start_fails_only_its_own_callers(
    script: Callable[[RawPeer], Any], error: type[Exception], autojump_clock: MockClock
) -> None:
    async with open_group({"bad": describe(script, connect_timeout=5), "good": in_memory()}) as group:
        with pytest.raises(MemberUnavailable) as caught:
            await group.client("bad")
        assert caught.value.member == "bad"
        assert type(caught.value.error) is error
        assert (await group.call_tool("good__greet")).text == "hello from greeter"
        await trio.sleep(100)
        assert group.statuses["bad"].state == MemberState.FAILED


async def test_one_that_dies_fails_the_calls_to_it_and_cancels_nobody(autojump_clock: MockClock) -> None:
    outcomes: list[Any] = []
    async with open_group({"bad": describe(serves("wait", "die")), "good": in_memory()}) as group:

        async def call(name: str, **arguments: Any) -> None:
            try:
                outcomes.append((await group.call_tool(name, arguments)).text)
            except Exception as error:
                outcomes.append(type(error))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, "bad__wait")
            nursery.start_soon(lambda: call("good__sleep", seconds=50))
            await wait_all_tasks_blocked()
            nursery.start_soon(call, "bad__die")
        assert outcomes == [ConnectionLost, ConnectionLost, "slept"]
        with pytest.raises(MemberUnavailable, match=r"'bad' has failed: the peer closed the connection"):
            await group.call_tool("bad__wait")


async def test_one_that_hangs_costs_its_callers_their_own_time_only(autojump_clock: MockClock) -> None:
    async with open_group({"bad": describe(serves("wait"), call_timeout=5), "good": in_memory()}) as group:
        with pytest.raises(trio.TooSlowError):
            await group.call_tool("bad__wait")
        assert (await group.call_tool("good__greet")).text == "hello from greeter"


async def test_one_that_answers_no_ping_has_failed(autojump_clock: MockClock) -> None:
    keep_alive = KeepAlive(interval=10, timeout=1)
    async with open_group({"bad": describe(serves()), "good": in_memory()}, keep_alive=keep_alive) as group:
        status = await until(group.watch(), "bad", MemberState.FAILED)
        assert str(status.error) == "the server did not answer 2 pings of 1 s each"
        await trio.sleep(100)
        assert (await group.call_tool("good__greet")).text == "hello from greeter"


async def test_a_server_whose_code_fails_at_the_start_has_failed_with_what_it_raised(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    def lifespan(_: Server) -> Any:
        raise LookupError("no database")

    async with open_group({"bad": MemberDescription(Server("bad", lifespan=lifespan))}) as group:
        with pytest.raises(MemberUnavailable, match="no database") as caught:
            await group.client("bad")
        assert type(caught.value.error) is LookupError
    assert "member bad failed" in caplog.text
    caplog.clear()


async def test_a_server_whose_code_hangs_at_the_start_has_failed_in_time(autojump_clock: MockClock) -> None:
    @asynccontextmanager
    async def lifespan(_: Server) -> Any:
        await trio.sleep_forever()
        yield

    bad = MemberDescription(Server("bad", lifespan=lifespan), options={"connect_timeout": 5})
    async with open_group({"bad": bad}) as group:
        with pytest.raises(MemberUnavailable, match="was not ready within 5 s"):
            await group.client("bad")
        assert trio.current_time() == pytest.approx(5)


async def test_a_server_whose_code_fails_at_the_end_harms_nobody(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    @asynccontextmanager
    async def lifespan(_: Server) -> Any:
        try:
            yield
        finally:
            raise LookupError("the database is gone")

    async with open_group({"bad": MemberDescription(Server("bad", lifespan=lifespan)), "good": in_memory()}) as group:
        await group.settled()
        await group.remove("bad")
        assert (await group.call_tool("good__greet")).text == "hello from greeter"
    assert "the database is gone" in caplog.text
    caplog.clear()


async def test_a_task_of_a_server_that_fails_while_it_is_closed_harms_nobody(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail_at_the_end() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise LookupError("the index is gone")

    @asynccontextmanager
    async def lifespan(_: Server) -> Any:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail_at_the_end)
            yield
            nursery.cancel_scope.cancel()

    async with open_group({"bad": MemberDescription(Server("bad", lifespan=lifespan)), "good": in_memory()}) as group:
        await group.settled()
        await group.remove("bad")
        assert (await group.call_tool("good__greet")).text == "hello from greeter"
    assert "the index is gone" in caplog.text
    caplog.clear()


async def test_tmo_07_the_ways_in_which_a_call_ends_differ_by_type(autojump_clock: MockClock) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        await peer.until("tools/call")
        await peer.error(await peer.until("tools/call"), -32001, "Request timed out")
        await peer.until("tools/call")
        await peer.close()

    async with open_group({"a": describe(script, call_timeout=5)}) as group:
        client = await group.client("a")
        with pytest.raises(trio.TooSlowError):
            await client.call_tool("timeout")
        with pytest.raises(PeerError, match="Request timed out"):
            await client.call_tool("peer error")
        with pytest.raises(ConnectionLost):
            await client.call_tool("loss")
        with pytest.raises(MemberUnavailable):
            await group.client("a")
    kinds = (trio.Cancelled, trio.TooSlowError, PeerError, ConnectionLost, MemberUnavailable, NotInCatalogue)
    assert not any(issubclass(one, other) for one in kinds for other in kinds if one is not other)


# Coming and going


async def test_api_01_members_are_closed_in_any_order_from_any_task(autojump_clock: MockClock) -> None:
    order = Sequencer()
    async with open_group({name: describe(serves("wait", "echo")) for name in "abc"}) as group:

        async def wait_on_a() -> None:
            async with order(0):
                await group.settled()
            with pytest.raises(ConnectionLost):
                await group.call_tool("a__wait")
            async with order(2):
                pass

        async def close_a() -> None:
            async with order(1):
                await wait_all_tasks_blocked()
                await group.remove("a")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_on_a)
            nursery.start_soon(close_a)
            async with order(3):
                assert (await group.call_tool("b__echo")).text == "echo"
        assert list(group.statuses) == ["b", "c"]


async def test_a_removed_member_is_no_member(autojump_clock: MockClock) -> None:
    async with open_group({"a": in_memory()}) as group:
        await group.settled()
        await group.remove("a")
        for call in (group.client, group.remove):
            with pytest.raises(MemberUnavailable, match="no member of this group"):
                await call("a")
        with pytest.raises(NotInCatalogue):
            await group.call_tool("a__greet")


async def test_who_waits_for_a_member_that_is_removed_is_told(autojump_clock: MockClock) -> None:
    async with open_group({"slow": describe(hangs)}) as group, trio.open_nursery() as nursery:

        async def wait(how: Callable[[], Any]) -> None:
            with pytest.raises(MemberUnavailable, match="'slow' was removed"):
                await how()

        async def wait_by_name() -> None:
            with pytest.raises(NotInCatalogue):
                await group.call_tool("slow__echo")

        nursery.start_soon(wait, lambda: group.client("slow"))
        nursery.start_soon(wait_by_name)
        nursery.start_soon(group.settled)
        await wait_all_tasks_blocked()
        await group.remove("slow")


async def test_a_name_is_free_at_once_when_its_member_is_removed(autojump_clock: MockClock) -> None:
    description = describe(serves("echo"))
    target = target_of(description)
    object.__setattr__(target, "may_close", trio.Event())
    async with open_group({"a": description}) as group, trio.open_nursery() as nursery:
        await group.settled()
        nursery.start_soon(group.remove, "a")
        await wait_all_tasks_blocked()
        group.add("a", in_memory())
        assert (await group.call_tool("a__greet")).text == "hello from greeter"
        assert len(nursery.child_tasks) == 1
        target.may_close.set()
        await wait_all_tasks_blocked()
        assert len(nursery.child_tasks) == 0
        assert group.statuses["a"].state == MemberState.READY


async def test_a_removal_that_is_cancelled_goes_on(autojump_clock: MockClock) -> None:
    description = describe(serves("echo"))
    async with open_group({"a": description}) as group:
        await group.settled()
        with trio.CancelScope() as scope:
            scope.cancel()
            await group.remove("a")
        assert group.statuses == {}
        await wait_all_tasks_blocked()
        group.add("a", description)
        assert (await group.call_tool("a__echo")).text == "echo"
    assert target_of(description).opened == 2


async def test_a_member_may_be_removed_by_its_own_callback(autojump_clock: MockClock) -> None:
    server = Server("s")

    @server.tool
    async def work(ctx: RequestContext) -> None:
        await ctx.log.error("remove me")
        await trio.sleep_forever()

    async def on_log(_: LogParams) -> None:
        await group.remove("s")

    async with open_group() as group:
        group.add("s", MemberDescription(server, options={"on_log": on_log, "era": "legacy"}))
        with pytest.raises(ConnectionLost):
            await group.call_tool("s__work")
        assert group.statuses == {}


@pytest.mark.parametrize("name", ["a", ""])
async def test_a_name_that_is_taken_or_empty_is_refused(name: str, autojump_clock: MockClock) -> None:
    async with open_group({"a": in_memory()}) as group:
        with pytest.raises(ValueError, match=r"already|not empty"):
            group.add(name, in_memory())


async def test_options_that_make_no_sense_are_refused_at_once(autojump_clock: MockClock) -> None:
    async with open_group() as group:
        with pytest.raises(ValueError, match="call_timeout"):
            group.add("a", in_memory(call_timeout=-1))
        assert group.statuses == {}


async def test_disabled_members_are_passed_over(autojump_clock: MockClock) -> None:
    disabled = MemberDescription(greeter(), disabled=True)
    async with open_group({"off": disabled, "on": in_memory()}) as group:
        assert list(group.statuses) == ["on"]
        with pytest.raises(ValueError, match="disabled"):
            group.add("off", disabled)


async def test_a_closed_group_takes_no_members_and_gives_none(autojump_clock: MockClock) -> None:
    async with open_group({"a": in_memory()}) as group:
        pass
    with pytest.raises(trio.ClosedResourceError):
        group.add("b", in_memory())
    with pytest.raises(MemberUnavailable):
        await group.client("a")


async def test_what_the_body_raises_leaves_as_it_is(autojump_clock: MockClock) -> None:
    with pytest.raises(LookupError, match="body"):
        async with open_group({"a": in_memory(), "b": describe(hangs)}):
            raise LookupError("body")


async def test_leaving_the_scope_around_the_group_cancels_calls_in_flight_with_its_reason(
    autojump_clock: MockClock,
) -> None:
    server, reasons = Server("s"), list[str | None]()

    @server.tool
    async def wait(ctx: RequestContext) -> None:
        try:
            await trio.sleep_forever()
        finally:
            assert ctx.cancellation is not None
            reasons.append(ctx.cancellation.reason)

    with trio.CancelScope() as scope:
        async with open_group({"s": MemberDescription(server)}) as group, trio.open_nursery() as nursery:
            nursery.start_soon(group.call_tool, "s__wait")
            await wait_all_tasks_blocked()
            scope.cancel(reason="the user left")
    assert reasons == ["the user left"]


def test_an_error_without_words_is_told_by_its_type() -> None:
    assert str(MemberUnavailable("a", "has failed", error=LookupError())) == "'a' has failed: LookupError"
    assert str(MemberUnavailable("a", "was removed")) == "'a' was removed"

"""Where the handlers of a running server live, and what its connections share."""

from __future__ import annotations

import trio
from trio.testing import wait_all_tasks_blocked

from trio_mcp.concurrency.workers import SlotState, Workers
from trio_mcp.runtime.limits import Limits, Load
from trio_mcp.runtime.requests.host import RequestHost


async def test_request_host_without_a_given_worker_pool_and_load_counter_creates_its_own() -> None:
    limits, workers, load = Limits(worker_threads=3), Workers(running=1, asking=1, abandoned=1), Load()
    given = RequestHost(limits, workers=workers, load=load, stateless=True, may_log=True)
    assert (given.limits, given.workers, given.load) == (limits, workers, load)
    assert (given.stateless, given.may_log) == (True, True)
    own = RequestHost(limits)
    assert (own.stateless, own.may_log) == (False, False)
    assert own.load is not load
    assert own.workers.free(SlotState.RUNNING) == 3
    assert len(own.parking) == 0


async def test_nursery_attribute_of_a_request_host_is_set_only_while_the_host_runs() -> None:
    host = RequestHost(Limits())
    assert host.nursery is None
    async with trio.open_nursery() as nursery:
        await nursery.start(host.run)
        assert host.nursery is not None
        host.nursery.start_soon(trio.sleep_forever)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert host.nursery is None


async def test_timers_fire_while_the_request_host_runs(autojump_clock: object) -> None:
    host, rung = RequestHost(Limits()), list[float]()
    async with trio.open_nursery() as nursery:
        await nursery.start(host.run)
        host.alarms.set(5, lambda: rung.append(trio.current_time()))
        await trio.sleep(10)
        nursery.cancel_scope.cancel()
    assert rung == [5]

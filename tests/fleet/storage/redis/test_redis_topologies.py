"""The link to a socket, to a user with rights, over TLS, to what Sentinel names, and to a cluster."""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import trio
import trustme
from tests.fleet.redis_server import RedisServer
from tests.patience import PATIENCE
from tests.ports import free_port

from trio_mcp.fleet.storage.redis.address import AddressKind, parse_url
from trio_mcp.fleet.storage.redis.client import Value, key_of
from trio_mcp.fleet.storage.redis.link import ChannelMessage, Link, Script, open_link
from trio_mcp.stores.task_store import HINTS_LOST, HintsLost, StoreDown, Uncertain

COUNT = Script("count", "return redis.call('INCR', KEYS[1])")
LONG = 30.0
ADMIN = "user default on nopass ~* &* +@all"


async def up(link: Link) -> None:
    with trio.fail_after(PATIENCE):
        await link.wait_until_up()


async def until(is_so: Callable[[], bool]) -> None:
    with trio.fail_after(PATIENCE):
        while not is_so():  # noqa: ASYNC110 - servers tell no event
            await trio.sleep(0.05)


async def next_of(messages: AsyncIterator[ChannelMessage | HintsLost]) -> ChannelMessage | HintsLost:
    with trio.fail_after(PATIENCE):
        return await anext(messages)


async def count_until_it_works(link: Link, key: str) -> int:
    """Count, as one who does not mind to count twice."""
    with trio.fail_after(PATIENCE):
        while True:
            try:
                return await link.script(COUNT, [key])
            except (StoreDown, Uncertain):
                await trio.sleep(0.05)


# Addresses.


@pytest.mark.parametrize(
    ("url", "kind", "hosts", "told"),
    [
        ("redis://localhost", AddressKind.SERVER, [("localhost", 6379)], "localhost:6379"),
        ("redis://ann:p%40ss@[::1]:7000/3", AddressKind.SERVER, [("::1", 7000)], "[::1]:7000"),
        ("unix:///run/redis.sock?db=3", AddressKind.SOCKET, (), "/run/redis.sock"),
        (
            "redis+sentinel://ann:p%40ss@a,b:7000/main?db=3&sentinel_password=secret",
            AddressKind.SENTINEL,
            [("a", 26379), ("b", 7000)],
            "main of a:26379,b:7000",
        ),
        ("redis+cluster://a:1,b", AddressKind.CLUSTER, [("a", 1), ("b", 6379)], "a:1,b:6379"),
    ],
)
def test_redis_url_is_parsed_into_kind_hosts_and_credentials(
    url: str, kind: AddressKind, hosts: Sequence[tuple[str, int]], told: str
) -> None:
    address = parse_url(url)
    assert (address.kind, list(address.hosts), str(address)) == (kind, list(hosts), told)
    assert address.db == (3 if "3" in url else 0)
    assert address.credentials == ({"username": "ann", "password": "p@ss"} if "ann" in url else {})
    assert address.sentinel_credentials == ({"password": "secret"} if "secret" in url else {})
    assert address.ssl_context is None
    assert "p@ss" not in repr(address)
    assert "secret" not in repr(address)


@pytest.mark.parametrize(
    "url",
    [
        "http://ann:sesame@host",
        "redis://ann:sesame@a,b",
        "redis://ann:sesame@a:port",
        "redis://ann:sesame@a/zero",
        "redis://ann:sesame@a?colour=red",
        "redis://ann:sesame@a?ssl_ca_certs=x",
        "redis+cluster://ann:sesame@a?db=1",
        "redis+sentinel://ann:sesame@a",
        "redis://ann:\u2100sesame@a",
        "redis://ann:[sesame]@a",
        "redis://ann:?sesame@a",
        "redis://ann:#sesame@a",
        "redis://ann:/sesame@a",
        "redis+sentinel://ann:/sesame@a",
    ],
)
def test_invalid_redis_url_raises_value_error_without_the_password(url: str) -> None:
    with pytest.raises(ValueError, match=r"Redis|redis://") as caught:
        parse_url(url)
    assert "sesame" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("command", "key"),
    [
        (("GET", "größe"), "größe".encode()),
        (("SET", b"\xff", 1), b"\xff"),
        (("HGET", 5, "field"), b"5"),
        (("EVALSHA", "digest", 1, "key", "argument"), b"key"),
        (("eval", "return 1", "2", b"first", b"second"), b"first"),
        (("EVAL", "return 1", 0, "argument"), None),
        (("PING",), None),
    ],
)
def test_redis_command_is_routed_to_the_node_of_its_first_key(command: Sequence[Value], key: bytes | None) -> None:
    assert key_of(command) == key


def test_redis_tls_certificates_are_verified_if_the_url_does_not_disable_verification() -> None:
    checked = parse_url("rediss://host").ssl_context
    assert checked is not None
    assert checked.check_hostname
    assert checked.verify_mode is ssl.CERT_REQUIRED
    unnamed = parse_url("rediss+cluster://host?ssl_check_hostname=no").ssl_context
    assert unnamed is not None
    assert not unnamed.check_hostname
    assert unnamed.verify_mode is ssl.CERT_REQUIRED
    given = ssl.create_default_context()
    assert parse_url("rediss://host", given).ssl_context is given
    with pytest.raises(ValueError, match="write rediss"):
        parse_url("redis://ann:sesame@host", given)


# One server.


async def test_redis_over_a_unix_socket_uses_the_database_of_the_url(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as short, RedisServer(tmp_path) as server:  # a path of a socket has a bound
        os.symlink(server.socket, link_path := f"{short}/redis")
        async with open_link(f"unix://{link_path}?db=2", limit=LONG) as link, link.subscribe(["a"]) as messages:
            await up(link)
            assert await link.script(COUNT, ["n"]) == 1
            server.ask("PUBLISH", "a", 1)
            assert await next_of(messages) == ChannelMessage("a", b"1")
        assert server.info("keyspace") == {"db2": "keys=1,expires=0,avg_ttl=0"}


async def test_redis_storage_works_with_a_redis_user_that_has_minimal_permissions(tmp_path: Path) -> None:
    """What the link itself needs: PING, and its channel. coredis needs HELLO alone."""
    rights = "user ann on >p@ss ~tmp:* resetchannels &tmp:* -@all +hello +ping +publish +subscribe +unsubscribe"
    with RedisServer(tmp_path, ADMIN, f"{rights} +evalsha +eval +incr") as server:
        url = server.url.replace("//", "//ann:p%40ss@")
        async with open_link(url, limit=LONG, prefix="tmp:x") as link, link.subscribe(["tmp:a"]) as messages:
            await up(link)
            assert await link.script(COUNT, ["tmp:n"]) == 1
            with pytest.raises(StoreDown, match="NOPERM"):
                await link.script(COUNT, ["other"])
            with pytest.raises(Uncertain, match="can't run this command"):
                await link.script(Script("set", "return redis.call('SET', KEYS[1], 1)"), ["tmp:n"])
            with pytest.raises(StoreDown, match="NOPERM"):
                await link.pipeline([("GET", "tmp:n")])
            server.ask("PUBLISH", "tmp:a", 1)
            assert await next_of(messages) == ChannelMessage("tmp:a", b"1")


async def test_redis_over_tls_verifies_the_certificate(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(ca := tmp_path / "ca.pem")
    certificate.private_key_and_cert_chain_pem.write_to_path(own := tmp_path / "own.pem")
    lines = [f"tls-cert-file {own}", f"tls-key-file {own}", f"tls-ca-cert-file {ca}", "tls-auth-clients optional"]
    with RedisServer(tmp_path, *lines, is_tls=True) as server:
        url = f"rediss://127.0.0.1:{server.tls_port}"
        async with open_link(f"{url}?ssl_ca_certs={ca}", limit=LONG) as link, link.subscribe(["a"]) as messages:
            await up(link)
            assert await link.script(COUNT, ["n"]) == 1
            server.ask("PUBLISH", "a", 1)
            assert await next_of(messages) == ChannelMessage("a", b"1")
            server.restart()
            assert await next_of(messages) is HINTS_LOST
            assert await count_until_it_works(link, "m") == 1
        context = ssl.create_default_context()
        authority.configure_trust(context)
        async with open_link(url, limit=LONG, ssl_context=context) as link:
            await up(link)
        caplog.clear()
        async with open_link(url, limit=LONG) as link:  # who trusts nobody but the system
            await until(lambda: "CERTIFICATE_VERIFY_FAILED" in caplog.text)
            assert not link.is_up


# Sentinel.


@contextmanager
def sentinel_of(folder: Path, *lines: str) -> Generator[tuple[RedisServer, RedisServer, RedisServer]]:
    """A primary, its replica, and a sentinel that takes the primary for dead after 0.5 s."""
    with ExitStack() as stack:
        primary = stack.enter_context(RedisServer(folder, *lines))
        replica = stack.enter_context(RedisServer(folder, f"replicaof 127.0.0.1 {primary.port}", *lines))
        watched = [
            f"sentinel monitor main 127.0.0.1 {primary.port} 1",
            "sentinel down-after-milliseconds main 500",
            "sentinel failover-timeout main 2000",
        ]
        yield primary, replica, stack.enter_context(RedisServer(folder, *watched, is_sentinel=True))


async def until_in_step(primary: RedisServer, sentinel: RedisServer) -> None:
    await until(lambda: "state=online" in primary.info("replication").get("slave0", ""))
    await until(lambda: sentinel.ask("SENTINEL", "REPLICAS", "main") != [])


@pytest.mark.parametrize("how", ["kill", "freeze"])
async def test_client_connects_to_the_new_master_after_a_redis_sentinel_failover(tmp_path: Path, how: str) -> None:
    with sentinel_of(tmp_path) as (primary, replica, sentinel):
        await until_in_step(primary, sentinel)
        url = f"redis+sentinel://127.0.0.1:1,127.0.0.1:{sentinel.port}/main?db=1"  # the first is not there
        async with open_link(url, limit=1) as link, link.subscribe(["a"]) as messages:
            await up(link)
            assert await link.script(COUNT, ["n"]) == 1
            assert primary.info("keyspace").keys() == {"db1"}
            await until(lambda: replica.info("keyspace").keys() == {"db1"})
            if how == "kill":
                primary.kill()
            else:
                primary.stop()
            assert await count_until_it_works(link, "n") == 2
            assert replica.info("replication")["role"] == "master"
            while await next_of(messages) is not HINTS_LOST:
                pass
            await until(lambda: replica.ask("PUBLISH", "a", 1) == 1)
            while (heard := await next_of(messages)) is HINTS_LOST:
                pass
            assert heard == ChannelMessage("a", b"1")


async def test_redis_storage_reports_an_unknown_sentinel_service(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with sentinel_of(tmp_path) as (_, _, sentinel):
        async with open_link(f"redis+sentinel://127.0.0.1:{sentinel.port}/other", limit=1) as link:
            await until(lambda: "No primary found for 'other'" in caplog.text)
            assert not link.is_up


# A cluster.


@contextmanager
def cluster_of(folder: Path, size: int) -> Generator[list[RedisServer]]:
    """Primaries that share the slots evenly."""
    with ExitStack() as stack:
        lines = ("cluster-enabled yes", "cluster-node-timeout 2000")
        # The port of the bus is not left to Redis: it would be one of those that the system gives to anybody.
        buses = [free_port() for _ in range(size)]
        nodes = [stack.enter_context(RedisServer(folder, *lines, f"cluster-port {bus}")) for bus in buses]
        first, *others = nodes
        for place, node in enumerate(nodes):
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", place + 1)
            node.ask("CLUSTER", "ADDSLOTSRANGE", 16384 * place // size, 16384 * (place + 1) // size - 1)
        for node, bus in zip(others, buses[1:], strict=True):
            first.ask("CLUSTER", "MEET", "127.0.0.1", node.port, bus)
        yield nodes


async def until_whole(nodes: list[RedisServer]) -> None:
    def is_whole() -> bool:
        return all(
            b"cluster_state:ok" in (info := node.ask("CLUSTER", "INFO"))
            and f"cluster_known_nodes:{len(nodes)}".encode() in info
            for node in nodes
        )

    await until(is_whole)


async def test_redis_cluster_runs_scripts_on_the_node_of_their_keys_even_after_resharding(tmp_path: Path) -> None:
    with cluster_of(tmp_path, 3) as nodes:
        await until_whole(nodes)
        url = f"redis+cluster://127.0.0.1:{nodes[0].port},127.0.0.1:{nodes[1].port}"
        async with open_link(url, limit=LONG) as link, link.subscribe(["a"]) as messages:
            await up(link)
            for number in range(60):
                assert await link.script(COUNT, [f"{{{number}}}n"]) == 1
            assert all(int(node.info("keyspace")["db0"].split(",")[0].removeprefix("keys=")) > 5 for node in nodes)
            keys = [f"{{{number}}}n" for number in range(60)]
            assert await link.pipeline([("GET", key) for key in keys]) == [b"1"] * 60
            with pytest.raises(StoreDown, match="CROSSSLOT"):
                await link.script(COUNT, ["a", "b"])
            assert await link.script(Script("none", "return 7"), []) == 7
            for number, node in enumerate(nodes):
                node.ask("PUBLISH", "a", number)
            assert {await next_of(messages) for _ in nodes} == {
                ChannelMessage("a", b"0"),
                ChannelMessage("a", b"1"),
                ChannelMessage("a", b"2"),
            }

            # A slot moves: the node that had the slot names the one that has it.
            slot = nodes[0].ask("CLUSTER", "KEYSLOT", "{moving}")
            source = next(node for node in nodes if not _is_moved(node, slot))
            target = next(node for node in nodes if node is not source)
            ids = {node: node.ask("CLUSTER", "MYID").decode() for node in (source, target)}
            assert await link.script(COUNT, ["{moving}kept"]) == 1
            target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source])
            source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target])
            assert await link.script(COUNT, ["{moving}kept"]) == 2
            assert await link.script(COUNT, ["{moving}new"]) == 1  # asked of the target, which has this key already
            source.ask("MIGRATE", "127.0.0.1", target.port, "{moving}kept", 0, 60_000)
            for node in (target, source):
                node.ask("CLUSTER", "SETSLOT", slot, "NODE", ids[target])
            assert await link.script(COUNT, ["{moving}kept"]) == 3
            assert await link.script(COUNT, ["{moving}new"]) == 2
            assert source.info("errorstats")["errorstat_MOVED"] == "count=1"  # the link has learnt from the first
            assert link.reconnects == 0
            assert link.uncertain == 0


def _is_moved(node: RedisServer, slot: int) -> bool:
    ranges = node.ask("CLUSTER", "SLOTS")
    return not any(first <= slot <= last and primary[1] == node.port for first, last, primary, *_ in ranges)


async def test_client_detects_a_frozen_redis_cluster_node_and_its_recovery(tmp_path: Path) -> None:
    with cluster_of(tmp_path, 3) as nodes:
        await until_whole(nodes)
        async with open_link(f"redis+cluster://127.0.0.1:{nodes[0].port}", limit=0.5) as link:
            await up(link)
            nodes[1].stop()
            await until(lambda: not link.is_up)
            nodes[1].go_on()
            await up(link)
            for number in range(20):
                assert await count_until_it_works(link, f"{{{number}}}n") >= 1

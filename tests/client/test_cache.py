"""What a cache of answers keeps, for whom, and how long."""

from __future__ import annotations

from typing import Any

import pytest

from trio_mcp import ResponseCache
from trio_mcp.client.cache import Change, PendingAnswer, RequestKey
from trio_mcp.types import CachePartition

TOOLS = RequestKey("tools/list", b"{}")
SECOND_PAGE = RequestKey("tools/list", b'{"cursor":"2"}', cursor="2")


def read(uri: str) -> RequestKey:
    return RequestKey("resources/read", uri.encode(), uri=uri)


def keep(partition: CachePartition, question: RequestKey, answer: Any, now: float = 0.0) -> None:
    with partition._cache._fetching(partition, question) as fetch:
        fetch.store(answer, now)


def told(name: str, ttl_ms: Any = 1000, scope: str = "private") -> dict[str, Any]:
    return {"tools": [{"name": name}], "ttlMs": ttl_ms, "cacheScope": scope}


def shown(partition: CachePartition, question: RequestKey = TOOLS, now: float = 0.0) -> Any:
    found = partition._cache._find(partition, question, now)
    return None if found is None else found["tools"][0]["name"]


def test_cached_response_is_used_until_its_ttl_ends() -> None:
    partition = ResponseCache().partition()
    keep(partition, TOOLS, told("a"), now=5.0)
    assert [shown(partition, now=now) for now in (5.0, 5.999, 6.0)] == ["a", "a", None]
    assert len(partition._cache) == 0


@pytest.mark.parametrize("ttl_ms", [0, -1, None, "1000", True, [1000]])
def test_response_without_a_valid_ttl_is_not_cached(ttl_ms: Any) -> None:
    partition = ResponseCache().partition()
    keep(partition, TOOLS, told("a", ttl_ms))
    assert len(partition._cache) == 0


@pytest.mark.parametrize("ttl_ms", [10**12, 2**70 / 1])
def test_cached_response_is_used_for_at_most_max_ttl(ttl_ms: float) -> None:
    partition = ResponseCache(max_ttl=60).partition()
    keep(partition, TOOLS, told("a", ttl_ms))
    assert [shown(partition, now=now) for now in (59.9, 60.0)] == ["a", None]


def test_response_that_cannot_be_encoded_is_not_cached() -> None:
    partition, deep = ResponseCache().partition(), list[Any]()
    for _ in range(100_000):
        deep = [deep]
    keep(partition, TOOLS, {**told("a"), "deep": deep})
    assert len(partition._cache) == 0


def test_response_that_is_not_an_object_is_not_cached() -> None:
    partition = ResponseCache().partition()
    keep(partition, TOOLS, [1, 2])
    assert len(partition._cache) == 0


def test_application_that_modifies_a_response_does_not_change_the_cached_copy() -> None:
    partition, answer = ResponseCache().partition(), told("a")
    keep(partition, TOOLS, answer)
    answer["tools"][0]["name"] = "poison"
    found = partition._cache._find(partition, TOOLS, 0.0)
    found["tools"].clear()
    assert shown(partition) == "a"


def test_private_cached_response_is_returned_only_to_its_principal() -> None:
    cache = ResponseCache()
    keep(cache.partition("s", "ann"), TOOLS, told("a"))
    assert shown(cache.partition("s", "ann")) == "a"
    assert shown(cache.partition("s", "bob")) is None
    assert shown(cache.partition("s")) is None
    assert shown(cache.partition("t", "ann")) is None
    assert shown(cache.partition(None, "ann")) is None


def test_public_cached_response_is_returned_to_all_clients_of_its_server() -> None:
    cache = ResponseCache()
    keep(cache.partition("s", "ann"), TOOLS, told("a", scope="public"))
    assert shown(cache.partition("s", "bob")) == shown(cache.partition("s")) == "a"
    assert shown(cache.partition("t", "ann")) is shown(cache.partition()) is None


def test_clients_without_a_server_name_share_no_cached_responses() -> None:
    cache = ResponseCache()
    keep(cache.partition("s"), TOOLS, told("a"))
    keep(cache.partition(), TOOLS, told("b", scope="public"))
    keep(cache.partition(None, "ann"), TOOLS, told("c", scope="public"))
    assert [shown(cache.partition("s")), shown(cache.partition()), shown(cache.partition(None, "ann"))] == [None] * 3


def test_private_responses_of_a_principal_named_public_are_not_shared_with_other_principals() -> None:
    cache = ResponseCache()
    keep(cache.partition("s", "public"), TOOLS, told("a"))
    assert shown(cache.partition("s", "bob")) is None


def test_later_response_that_cannot_be_cached_removes_the_cached_response() -> None:
    partition = ResponseCache().partition()
    keep(partition, TOOLS, told("a", scope="public"))
    keep(partition, TOOLS, told("b"))
    assert shown(partition) == "b"
    keep(partition, TOOLS, told("c", ttl_ms=0))
    assert len(partition._cache) == 0


def test_late_response_to_an_earlier_request_does_not_replace_the_cached_later_response() -> None:
    cache = ResponseCache()
    partition = cache.partition()
    with cache._fetching(partition, TOOLS) as earlier:
        keep(partition, TOOLS, told("later"))
        earlier.store(told("earlier"), 0.0)
    assert shown(partition) == "later"


def test_response_to_a_later_request_replaces_an_earlier_cached_response() -> None:
    cache = ResponseCache()
    partition = cache.partition()
    with cache._fetching(partition, TOOLS) as earlier, cache._fetching(partition, TOOLS) as later:
        earlier.store(told("earlier"), 0.0)
        later.store(told("later"), 0.0)
    assert shown(partition) == "later"


# Changes


@pytest.mark.parametrize(
    ("kind", "methods"),
    [
        ("tools", {"tools/list", "server/discover"}),
        ("prompts", {"prompts/list", "server/discover"}),
        ("resources", {"resources/list", "resources/templates/list", "server/discover"}),
    ],
)
def test_list_change_invalidates_only_cached_pages_of_that_list(kind: Any, methods: set[str]) -> None:
    lists = ("tools/list", "prompts/list", "resources/list", "resources/templates/list", "server/discover")
    partition = ResponseCache().partition()
    questions = [RequestKey(method, cursor) for method in lists for cursor in (b"", b"2")] + [read("x://a")]
    for question in questions:
        keep(partition, question, told("a"))
    partition._changed(Change(kind))
    assert {question.method for question in questions if shown(partition, question) is None} == methods


def test_resource_update_invalidates_the_cached_resource_and_its_parent_resources() -> None:
    partition = ResponseCache().partition()
    uris = ("x://dir", "x://dir/a", "x://dir/a/deep", "x://dir/b", "x://other")
    for uri in uris:
        keep(partition, read(uri), told("a"))
    partition._changed(Change("resource", "x://dir/a"))
    assert [uri for uri in uris if shown(partition, read(uri)) is None] == ["x://dir", "x://dir/a"]


def test_list_change_invalidates_cached_lists_of_all_principals_of_that_server_only() -> None:
    cache = ResponseCache()
    everybody = [cache.partition("s", "ann"), cache.partition("s", "bob"), cache.partition("t", "ann")]
    for partition in everybody:
        keep(partition, TOOLS, told("a"))
    cache.partition("s", "carol")._changed(Change("tools"))
    assert [shown(partition) for partition in everybody] == [None, None, "a"]


def test_list_response_is_not_cached_if_a_list_change_arrives_before_the_response() -> None:
    cache = ResponseCache()
    ann, bob = cache.partition("s", "ann"), cache.partition("s", "bob")
    with cache._fetching(ann, TOOLS) as hers, cache._fetching(bob, read("x://a")) as his:
        bob._changed(Change("tools"))
        hers.store(told("old"), 0.0)
        his.store(told("good"), 0.0)
    assert (shown(ann), shown(bob, read("x://a"))) == (None, "good")
    keep(ann, TOOLS, told("new"))
    assert shown(ann) == "new"


# Errors


def refuse(partition: CachePartition, question: RequestKey, code: int) -> None:
    with partition._cache._fetching(partition, question) as fetch:
        fetch.record_error(code)


def test_error_response_invalidates_the_cached_response_and_is_not_cached() -> None:
    cache = ResponseCache()
    ann, bob = cache.partition("s", "ann"), cache.partition("s", "bob")
    keep(bob, read("x://a"), told("his"))
    keep(ann, read("x://b"), told("hers"))
    keep(ann, read("x://a"), told("public", scope="public"))
    refuse(ann, read("x://a"), -32602)
    assert (shown(ann, read("x://a")), shown(ann, read("x://b"))) == (None, "hers")
    assert shown(bob, read("x://a")) == "his"


@pytest.mark.parametrize(("code", "first"), [(-32602, None), (-31000, "a")])
def test_cursor_rejected_by_the_server_invalidates_all_cached_pages_of_the_list(code: int, first: str | None) -> None:
    partition = ResponseCache().partition()
    keep(partition, TOOLS, told("a"))
    keep(partition, RequestKey("prompts/list", b"{}"), told("p"))
    refuse(partition, SECOND_PAGE, code)
    assert shown(partition) == first
    assert shown(partition, RequestKey("prompts/list", b"{}")) == "p"


# Bounds


def test_least_recently_used_cache_entry_is_evicted_first() -> None:
    partition = ResponseCache(max_entries=2).partition()
    keep(partition, read("a"), told("a"))
    keep(partition, read("b"), told("b"))
    assert shown(partition, read("a")) == "a"
    keep(partition, read("c"), told("c"))
    assert [shown(partition, read(uri)) for uri in "abc"] == ["a", None, "c"]


def test_cache_has_a_byte_limit_and_an_oversized_response_evicts_no_entries() -> None:
    partition = ResponseCache(max_bytes=300).partition()
    for uri in "abcdef":
        keep(partition, read(uri), told(uri))
        assert partition._cache.size <= 300
    kept = len(partition._cache)
    assert 0 < kept < 6
    keep(partition, read("g"), told("g" * 301))
    assert len(partition._cache) == kept


@pytest.mark.parametrize("bounds", [{"max_entries": -1}, {"max_bytes": -1}, {"max_ttl": -1}, {"max_ttl": float("inf")}])
def test_invalid_cache_limits_are_refused(bounds: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be finite and not negative"):
        ResponseCache(**bounds)


def test_cached_response_that_cannot_be_copied_near_the_recursion_limit_is_not_used() -> None:
    partition, deep = ResponseCache().partition(), list[Any]()
    for _ in range(250):
        deep = [deep]
    keep(partition, TOOLS, {**told("a"), "deep": deep})

    def descend(levels: int) -> Any:
        return descend(levels - 1) if levels else partition._cache._find(partition, TOOLS, 0.0)

    assert partition._cache._find(partition, TOOLS, 0.0)["deep"] == deep
    found = _at_the_bottom(descend)
    assert found is None or found["deep"] == deep  # by the version of Python, C code has a stack of its own


def _at_the_bottom(descend: Any) -> Any:
    """What ``descend`` finds with the least of the stack left that lets it look at all."""
    for levels in range(1000, 0, -20):
        try:
            return descend(levels)
        except RecursionError:
            continue
    raise AssertionError("nothing could be called at all")


def test_failed_request_leaves_nothing_in_the_cache() -> None:
    cache = ResponseCache()
    partition = cache.partition()
    with pytest.raises(KeyError), cache._fetching(partition, TOOLS) as fetch:
        raise KeyError
    assert isinstance(fetch, PendingAnswer)
    partition._changed(Change("tools"))
    assert not fetch.is_outdated

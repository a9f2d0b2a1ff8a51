from __future__ import annotations

from weakref import ref

import pytest

from trio_mcp import CodedError
from trio_mcp.runtime.peer import SOLE_CLIENT, UNKNOWN_PEER, Headers, Peer


def test_peer_headers_are_looked_up_case_insensitively() -> None:
    headers = Headers({"User-Agent": "x", "origin": "null"})
    assert headers["user-agent"] == headers["USER-AGENT"] == headers.get("User-Agent") == "x"
    assert "Origin" in headers
    assert "Host" not in headers
    with pytest.raises(KeyError):
        headers["Host"]


def test_peer_headers_are_listed_in_lower_case() -> None:
    assert dict(Headers({"User-Agent": "x"})) == {"user-agent": "x"}
    assert len(Headers({"User-Agent": "x"})) == 1


def test_repr_of_headers_shows_names_and_values() -> None:
    assert repr(Headers({"Host": "x"})) == "Headers({'host': 'x'})"


def test_peer_headers_packed_into_bytes_equal_the_original_headers() -> None:
    headers = Headers({"User-Agent": "größe", "Host": "x"})
    for peer in (Peer(headers=headers), Peer(headers={"host": "x"}), UNKNOWN_PEER):
        peer.pack()
        peer.pack()
    assert dict(headers) == {"user-agent": "größe", "host": "x"}
    headers.pack()
    assert (headers["USER-AGENT"], len(headers), "host" in headers) == ("größe", 2, True)


class Values(dict[str, str]):
    """Headers whose end can be seen."""


def test_peer_headers_packed_into_bytes_have_no_reference_to_the_original_objects() -> None:
    values = Values({"host": "x"})
    headers, seen = Headers.of_lower_case(values), ref(values)
    del values
    headers.pack()
    assert seen() is None
    assert headers["host"] == "x"


def test_peer_object_created_without_arguments_has_no_session_headers_or_principal() -> None:
    for peer, alone in ((Peer(), False), (UNKNOWN_PEER, False), (SOLE_CLIENT, True)):
        assert (peer.session_id, peer.headers, peer.principal, peer.alone) == (None, None, None, alone)


def test_peer_has_the_scopes_that_its_check_function_accepts() -> None:
    checked = list[frozenset[str]]()

    def check(needed: frozenset[str]) -> None:
        checked.append(needed)
        if "write" in needed:
            raise CodedError(-1, "write is missing")

    read, both, peer = frozenset({"read"}), frozenset({"read", "write"}), Peer(check_scopes=check)
    assert (peer.has_scopes(read), peer.has_scopes(both), peer.has_scopes(frozenset())) == (True, False, True)
    assert checked == [read, both]
    assert Peer().has_scopes(both)


def test_peer_objects_with_equal_attributes_are_not_equal() -> None:
    assert Peer() != Peer()


@pytest.mark.parametrize("name", ["Authorization", "Cookie", "DPoP", "Proxy-Authorization"])
def test_repr_of_headers_hides_credentials(name: str) -> None:
    headers = Headers({name: "Bearer secret", "Host": "x"})
    assert "secret" not in repr(Peer(headers=headers))
    assert headers[name] == "Bearer secret"

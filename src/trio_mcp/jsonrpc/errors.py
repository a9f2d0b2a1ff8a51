"""The error codes of JSON-RPC 2.0, and the exceptions that this layer defines.

`clean` makes the words of a peer fit for errors and logs.
"""

from __future__ import annotations

from typing import Any, Final


def clean(text: str) -> str:
    """Return ``text`` with a blank in the place of each other white space, line ends included, and a replacement
    character in the place of all else that cannot be printed: control characters such as ESC, directions of writing,
    lone surrogates. So nobody can forge a line of a log, or give orders to a terminal. To be used where words of a peer
    enter an error or a log record."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else " " if each.isspace() else "\N{REPLACEMENT CHARACTER}" for each in text
    )


PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
TOO_BUSY: Final = -31000
"""A code of ours, outside the reserved ranges: a limit of this server is reached, or it is shutting down; try later."""


class MCPError(Exception):
    """The base class of the errors of this package."""


class CodedError(MCPError):
    """An error for the peer, sent as a JSON-RPC error with ``code``, ``message`` and ``data``.

    The peer sees ``message``, so put nothing internal there. ``data`` is JSON data or `None`; `None` is left out on the
    wire. Raises `TypeError` for a ``code`` that is not an integer or a ``message`` that is not a string.
    """

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        if not isinstance(code, int) or not isinstance(message, str):  # pyright: ignore[reportUnnecessaryIsInstance] authors' own
            raise TypeError(
                f"an error has an integer and a text, as in CodedError(-32000, 'full'), not {code!r} and {message!r}"
            )
        super().__init__(code, message, data)
        self.code = code
        self.message = message
        self.data = data

    def __str__(self) -> str:
        return f"{clean(self.message)} ({self.code})"


class PeerError(MCPError):
    """The peer answered a request with an error: the ``code``, ``message`` and ``data`` as received. The text of the
    exception is one line without control characters."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(code, message, data)
        self.code = code
        self.message = message
        self.data = data

    def __str__(self) -> str:
        return f"the peer answered: {clean(self.message)} ({self.code})"


class ProtocolViolation(MCPError):
    """The peer answered a request with something the specification does not allow, as ``reason`` says."""

    def __init__(self, reason: str) -> None:
        super().__init__(clean(reason))


class UnreadableAnswer(ProtocolViolation):
    """The peer answered a request with something too long, not in JSON-RPC, or about nothing that was asked, so the
    answer is unknown."""


class NotSerializable(MCPError, ValueError):
    """A value that JSON cannot carry: NaN, an infinity, a lone surrogate, a foreign object, a cycle."""


class UnsendableResult(NotSerializable):
    """A handler returned a result that JSON cannot carry. The log record has no traceback, because a traceback would
    show none of the author's code."""

"""The error codes and exceptions of JSON-RPC 2.0.

`clean` makes a peer's text safe for errors and logs.
"""

from __future__ import annotations

from typing import Any, Final


def clean(text: str) -> str:
    """Make text from a peer safe for errors and log records: replace line ends and unprintable characters.

    The peer then can't forge log lines or control a terminal. All white space, including line ends, becomes blanks. All
    unprintable characters, such as ESC, writing directions and lone surrogates, become a replacement character.
    """
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
"""Error code of this package, outside the reserved ranges. It means that a limit of this server is reached, or that the
server is shutting down. Try later."""


class MCPError(Exception):
    """Base class of the exceptions of this package."""


class CodedError(MCPError):
    """Raise this to send the peer a JSON-RPC error with ``code``, ``message`` and ``data``.

    The peer sees ``message``, so put nothing internal there. ``data`` is JSON data, and is omitted on the wire if it is
    `None`. Raises `TypeError` unless ``code`` is an integer and ``message`` a string.
    """

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        if not isinstance(code, int) or not isinstance(message, str):  # pyright: ignore[reportUnnecessaryIsInstance] authors' own
            raise TypeError(
                f"CodedError needs an integer code and a string message, not {code!r} and {message!r}: "
                "write CodedError(-32000, 'full')"
            )
        super().__init__(code, message, data)
        self.code = code
        """Code of the JSON-RPC error, an integer."""
        self.message = message
        """Message of the JSON-RPC error, which the peer sees."""
        self.data = data
        """Further data of the JSON-RPC error, as JSON data; `None` if there is none."""

    def __str__(self) -> str:
        return f"{clean(self.message)} ({self.code})"


class PeerError(MCPError):
    """The peer responded to a request with an error: ``code``, ``message`` and ``data`` are as received.

    The text of the exception is one line without control characters.
    """

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(code, message, data)
        self.code = code
        """Code of the JSON-RPC error, as received."""
        self.message = message
        """Message of the JSON-RPC error, as received."""
        self.data = data
        """Further data of the JSON-RPC error, as received; `None` if there is none."""

    def __str__(self) -> str:
        return f"the peer answered: {clean(self.message)} ({self.code})"


class ProtocolViolation(MCPError):
    """The peer responded to a request in a way that the specification doesn't allow.

    ``reason`` describes the violation.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(clean(reason))


class UnreadableAnswer(ProtocolViolation):
    """The peer's response to a request can't be read, so the answer is unknown.

    It is too long, isn't JSON-RPC, or doesn't match any request.
    """


class NotSerializable(MCPError, ValueError):
    """A value can't be written as JSON.

    Examples are NaN, an infinity, a lone surrogate, an object of an unknown class, and a cycle.
    """


class UnsendableResult(NotSerializable):
    """A handler returned a result that can't be written as JSON.

    This error is logged without a traceback, because a traceback wouldn't contain the author's code.
    """

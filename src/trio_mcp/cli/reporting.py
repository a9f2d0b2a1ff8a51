"""A server's tools, resources and prompts as data, and messages and exit statuses for errors of a server."""

from __future__ import annotations

import math
from typing import Any, Final

import trio

from ..auth.credentials import AuthorizationError, SignInNeeded
from ..client.client import Client
from ..client.listing import SILENT, collect_each
from ..connecting.bad_target import BadTarget
from ..jsonrpc.errors import CodedError, MCPError, NotSerializable, PeerError, ProtocolViolation
from ..protocol.converters import unstructure
from ..protocol.fields import JSONObject
from ..protocol.types.skills import SKILLS_EXTENSION
from ..runtime.transport import ConnectionLost, HTTPError
from . import NO_CONNECTION, NOT_AUTHORIZED, OUT_OF_TIME, SERVER_ERROR, USAGE
from .printable import say

WITH_SERVER: Final = (MCPError, trio.TooSlowError)
"""Exceptions that the use of a server can raise, and that `say_error` handles."""
_SIGN_IN: Final = (
    "the server requires you to sign in: run the command in a terminal, open your browser with --sign-in, or pass a "
    "token with --bearer-env NAME"
)


def say_error(error: Exception) -> int:
    """Print an error from the connection to a server, and return the exit status for this error."""
    words, status = _report(error)
    say("\n".join([words, *getattr(error, "__notes__", ())]))
    return status


def _report(error: Exception) -> tuple[str, int]:
    match error:
        case trio.TooSlowError():
            return "the server did not respond in time" + (f": {error}" if str(error) else ""), OUT_OF_TIME
        case SignInNeeded():
            return _SIGN_IN, NOT_AUTHORIZED
        case AuthorizationError():
            return str(error), NOT_AUTHORIZED
        case BadTarget():
            return str(error), USAGE
        case ConnectionLost() | HTTPError(status=None):
            return str(error), NO_CONNECTION
        case CodedError():  # a handler of this client has refused a request of the server
            return f"the call ended: {error.message}", SERVER_ERROR
        case PeerError():
            return f"the server responded with an error: {error.message} (code {error.code})", SERVER_ERROR
        case ProtocolViolation():
            return f"the server violated the protocol: {error}", SERVER_ERROR
        case NotSerializable():
            return f"the arguments cannot be sent: {error}", USAGE
        case _:
            return str(error), SERVER_ERROR


class ServerOffers:
    """The tools, resources, prompts and skills of the server that ``client`` is connected to. After `collect`, the
    client may be closed."""

    def __init__(self, client: Client) -> None:
        self.client = client
        declared = client.server_capabilities
        skills = (declared.extensions or {}).get(SKILLS_EXTENSION)
        self._lists = {
            "tools": client.list_tools(),
            "resources": None if declared.resources is None else client.list_resources(),
            "resourceTemplates": None if declared.resources is None else client.list_resource_templates(),
            "prompts": None if declared.prompts is None else client.list_prompts(),
            "skills": None if skills is None else client.list_skills(),
        }
        self._found = dict.fromkeys((name for name, pages in self._lists.items() if pages is not None), SILENT)

    async def collect(self) -> None:
        """Request all lists that the server declares, and always the list of tools. If the connection fails before any
        list has arrived, raise the connection's exception."""
        wanted = {name: pages for name, pages in self._lists.items() if pages is not None}
        await collect_each(wanted, math.inf, self._found.__setitem__)
        errors = [each.error for each in self._found.values() if each.error and not each.items]
        if len(errors) == len(wanted) and isinstance(errors[0], ConnectionLost | HTTPError | AuthorizationError):
            raise errors[0]

    def items(self, name: str) -> list[Any] | None:
        """Return the items of the server's list ``name``, such as ``tools``. Returns `None` if the list couldn't be
        read, or if the server doesn't declare it."""
        found = self._found.get(name, SILENT)
        return found.items or (None if found.error is not None or found.is_undeclared else [])

    @property
    def problems(self) -> dict[str, str]:
        """Descriptions of the errors that occurred while lists were read, keyed by the JSON names of the lists."""
        return {name: remark for name, each in self._found.items() if (remark := each.remark) is not None}

    @property
    def era(self) -> str:
        """``"legacy"`` if the connection's protocol revision is 2025-11-25 or older, otherwise ``"modern"``."""
        return "legacy" if self.client.revision.handshake else "modern"

    def as_json(self) -> JSONObject:
        """Return the server's tools, resources, prompts and skills as JSON data, in the form of the connection's
        protocol revision."""
        client = self.client

        def plain(value: Any) -> Any:
            if isinstance(value, list):
                return [plain(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
            return None if value is None else unstructure(value, client.revision)

        return {
            "server": plain(client.server_info),
            "revision": client.revision.name,
            "era": self.era,
            "instructions": client.instructions,
            "capabilities": plain(client.server_capabilities),
            **{name: plain(self.items(name)) for name in self._lists},
            "problems": self.problems,
        }

"""`from_openapi`: create a server whose tools are operations of an HTTP API."""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Callable, Collection, Generator, Mapping
from types import MappingProxyType
from typing import Any, Final, cast

from ..classes import frozen
from ..concurrency.contexts import contextmanager
from ..jsonrpc.errors import clean
from ..protocol.fields import JSONObject, as_object
from ..protocol.types.tools import CallToolResult, ToolAnnotations
from ..server.calling.results import error_result
from ..server.options import ToolOptions, check_options
from ..server.server import Server
from . import httpx2
from .arguments import ArgumentReader, Arguments, UnsendableArguments
from .document import APIOperation, Document, Loader
from .responses import OperationResponses, ResponseReader, status_of

logger = logging.getLogger("trio_mcp")

_HINTS: Final = {
    "GET": ToolAnnotations(read_only_hint=True),
    "HEAD": ToolAnnotations(read_only_hint=True),
    "OPTIONS": ToolAnnotations(read_only_hint=True),
    "TRACE": ToolAnnotations(read_only_hint=True),
    "PUT": ToolAnnotations(read_only_hint=False, idempotent_hint=True),
    "DELETE": ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True),
}
_MAX_REDIRECTS: Final = 5
_PLACE: Final = re.compile(r"[A-Z]+ /")
"""Matches the beginning of "METHOD /path"."""


def from_openapi(
    document: Mapping[str, Any],
    *,
    http: httpx2.AsyncClient,
    operations: Collection[str] | Callable[[APIOperation], bool],
    options: Callable[[APIOperation], ToolOptions] | None = None,
    loader: Loader | None = None,
    variables: Mapping[str, str] = MappingProxyType({}),
    origins: Collection[str] = (),
    max_bytes: int = 1_000_000,
) -> Server:
    """Create a server whose tools are operations of an HTTP API, described by an OpenAPI document. Needs the extra
    ``trio-mcp[openapi]``.

        async with httpx2.AsyncClient(base_url="https://api.example.com", headers={"X-Key": key}) as http:
            await serve_stdio(from_openapi(document, http=http, operations=["listPets", "GET /pets/{id}"]))

    Args:
        document: OpenAPI 3.0 or 3.1, as plain data from ``json.loads`` or ``yaml.safe_load``.
        http: Sends the requests, with your credentials, limits and timeouts. You close it yourself. Parameters, headers
            and cookies that it sets itself aren't arguments of the tools.
        operations: The operations to offer as tools; no others are offered. Each is an ``operationId``, which must be
            unique in the document, or a method and a path. Or pass a function that gets each `APIOperation`, for
            example ``lambda operation: "pets" in operation.tags``.
        options: Returns the keywords for the tool of an operation, for example a timeout or another name: see
            `ToolOptions`.
        origins: Further origins to which the credentials of ``http`` may be sent. A server of any other origin is
            refused.
        variables: Values for the variables in server URLs.
        loader: Gets the URI of another document, and returns it as plain data. References to other documents are
            followed only with a loader.
        max_bytes: Maximum size of an answer.

    Relative server URLs are relative to the ``base_url`` of ``http``. If the document has no ``servers``, ``base_url``
    is the server. Redirects are followed within an origin, if ``http`` follows redirects. Each call is sent with the
    cookies of ``http``. Cookies that the API sets during a call are dropped after the call. Cancelling a call closes
    its HTTP exchange.

    A status from 400 on is a tool error. A successful answer is never an error: if it differs from the document, or has
    more than ``max_bytes`` bytes, the result is text with a note, which the output schema allows.

    Raises `ValueError` for an operation that cannot be offered, which the error names, and for a name in ``operations``
    that isn't in the document.
    """
    _check(http, operations, document)
    read = Document(document, loader)
    title, version, description = (_text(read.root, key) for key in ("title", "version", "description"))
    server = Server(title or "API", version or "0.0.0", description=description)
    arguments, answers = ArgumentReader(read, http), ResponseReader(read)
    allowed = {httpx2.URL(origin).origin for origin in (str(http.base_url), *origins)}
    offered: list[tuple[APIOperation, Arguments]] = []
    for operation in _chosen(read, operations):
        with _naming(operation):
            url = _allowed(*read.server_of(operation, http.base_url, variables), http.base_url, allowed)
            given = arguments.read(operation)
            tool = _APITool(operation, http, url, given, answers.read(operation), max_bytes)
            own = options(operation) if options is not None else ToolOptions()
            check_options("@server.tool", own, ToolOptions)
            server._tools.add(tool.call, tool.options() | own, None if "input_schema" in own else given.validator)
            offered.append((operation, given))
    for operation, given in offered if arguments.schemas.multiply(given.schema for _, given in offered) else ():
        with _naming(operation):
            given.validator.check()
    return server


@contextmanager
def _naming(operation: APIOperation) -> Generator[None]:
    """In the ``with`` block, add the method and path of ``operation`` to the message of each `ValueError`."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{operation.method} {operation.path}: {error}") from None
    except RecursionError:
        raise ValueError(
            f"{operation.method} {operation.path}: the OpenAPI operation has too many levels of nesting"
        ) from None


def _text(root: JSONObject, key: str) -> str | None:
    """Return the description of the API in the document. Return `None` if the document has none."""
    text = as_object(root.get("info")).get(key)
    return text if isinstance(text, str) else None


def _check(http: object, operations: object, document: object) -> None:
    if not isinstance(http, httpx2.AsyncClient):
        raise TypeError(f"http must be an httpx2.AsyncClient, which runs on trio, not {type(http).__name__}")
    if http.base_url.is_relative_url:
        raise ValueError("http needs the URL of the API: httpx2.AsyncClient(base_url='https://api.example.com')")
    if isinstance(operations, str):
        raise TypeError(f"operations must be a list:\n    wrong:  {operations!r}\n    right:  [{operations!r}]")
    if not callable(operations) and not all(isinstance(name, str) for name in cast("Collection[object]", operations)):
        raise TypeError(f"operations must be strings or a function, not {operations!r}")
    if not isinstance(document, Mapping):
        raise TypeError(
            "document must be plain data, because from_openapi reads no files and URLs:\n"
            "    wrong:  from_openapi('openapi.json', ...)\n"
            "    right:  from_openapi(json.loads(Path('openapi.json').read_text()), ...)"
        )


def _chosen(document: Document, wanted: Collection[str] | Callable[[APIOperation], bool]) -> list[APIOperation]:
    if callable(wanted):
        return [operation for operation in document.operations() if wanted(operation)]
    chosen: list[APIOperation] = []
    found: dict[str, str] = {}
    for operation in document.operations():
        place = f"{operation.method} {operation.path}"
        names = {place} & set(wanted)
        # Ignore an operationId such as "GET /pets": text of this form in `wanted` always means a method and a path.
        if operation.id is not None and operation.id in wanted and not _PLACE.match(operation.id):
            names.add(operation.id)
        for name in names:
            if name in found:
                raise ValueError(
                    f"the document has the operationId {name[:200]!r} twice: write {found[name][:200]!r} or "
                    f"{place[:200]!r} instead"
                )
            found[name] = place
        if names:
            chosen.append(operation)
    if missing := set(wanted) - set(found):
        raise ValueError(
            f"the document has no operation {', '.join(map(repr, sorted(missing)))}: write an operationId, or a method "
            "and a path as in 'GET /pets'"
        )
    return chosen


def _allowed(url: httpx2.URL, removal: str, home: httpx2.URL, allowed: Collection[httpx2.Origin]) -> httpx2.URL:
    if url.origin in allowed:
        return url
    origin = f"{url.scheme}://{url.netloc.decode()}"
    raise ValueError(
        f"the document has this operation at {origin}, but the argument http is a client for {home}: to call {origin} "
        f"with the credentials of http, pass origins=[{origin!r}]; to call the server of http instead, run: "
        f"{removal}"
    )


@frozen(eq=False)
class _APITool:
    """A tool that calls an OpenAPI operation over HTTP."""

    _operation: APIOperation
    _http: httpx2.AsyncClient
    _server: httpx2.URL
    _arguments: Arguments
    _responses: OperationResponses
    _max_bytes: int

    def options(self) -> ToolOptions:
        """Return the keyword arguments that register a tool for this operation. They come from the OpenAPI document."""
        operation, data = self._operation, self._operation.data
        texts = [data[key] for key in ("summary", "description") if isinstance(data.get(key), str)]
        if operation.deprecated:
            texts.insert(0, "Deprecated.")
        made = ToolOptions(
            name=operation.name,
            description="\n\n".join(texts) or f"{operation.method} {operation.path}",
            input_schema=self._arguments.schema,
        )
        if operation.tags:
            made["tags"] = operation.tags
        if operation.method in _HINTS:
            made["annotations"] = _HINTS[operation.method]
        if self._responses.schema is not None:
            made["output_schema"] = self._responses.schema
        return made

    async def call(self, arguments: JSONObject) -> CallToolResult:
        """Send the HTTP request for a call of the tool, and return the tool's result."""
        name = self._operation.name
        # Copy the cookies, so that a cookie from one caller's response isn't sent with another caller's call.
        http = copy.copy(self._http)
        http.cookies = self._http.cookies
        try:
            request = self._arguments.request(http, self._operation.method, self._server, arguments)
        except UnsendableArguments as error:
            return error_result(f"Invalid arguments for {name}: {error}")
        try:
            response = await self._opened(http, request)
            try:
                return await self._responses.result(response, self._max_bytes)
            finally:
                await response.aclose()
        except httpx2.TimeoutException:
            return error_result("the API did not answer in time")
        except httpx2.HTTPStatusError as error:  # an event hook of the author's HTTP client has raised this error
            return error_result(status_of(error.response))
        except httpx2.HTTPError as error:
            logger.warning("%s: %s: %s", name, type(error).__name__, clean(str(error))[:200])
            return error_result("the API is unavailable, or sent an invalid answer")

    async def _opened(self, http: httpx2.AsyncClient, request: httpx2.Request) -> httpx2.Response:
        """Send ``request``, and follow redirects within its origin. Return the response, whose body isn't read yet."""
        origin = request.url.origin
        response = await http.send(request, stream=True, follow_redirects=False)
        for _ in range(_MAX_REDIRECTS if http.follow_redirects else 0):
            following = response.next_request
            if following is None or following.url.origin != origin:
                break
            await response.aclose()
            response = await http.send(following, stream=True, follow_redirects=False)
        return response

"""Advice in errors is code that works: names exist, calls fit signatures, and options are checked in the name of the
function that was called."""

from __future__ import annotations

import ast
import inspect
import logging
import re
import sys
from collections.abc import Awaitable, Callable, Iterator
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any, Unpack, get_args, is_typeddict

import pytest
import trio
from tests.public import FACE, names
from tests.public import module as public_module

import trio_mcp
from trio_mcp import (
    Address,
    Client,
    Command,
    InMemory,
    RequestContext,
    Server,
    Skills,
    aio,
    blocking,
    http_app,
    mistakes,
    open_client,
    open_http,
    open_memory,
    open_stdio,
    open_tcp,
    open_unix,
    open_websocket,
    run_process_tree,
    serve_http,
    serve_tcp,
    serve_unix,
    serve_websocket,
    testing,
)
from trio_mcp.concurrency.misuse import _keywords_of
from trio_mcp.hosting import Group, MemberDescription, open_group
from trio_mcp.types import ConnectedClient

SOURCE = Path(trio_mcp.__file__).parent
MODULES: tuple[ModuleType, ...] = (*map(public_module, FACE), aio, blocking, testing)


# Options


def option_takers() -> Iterator[str]:
    """The public functions, classes and methods that take the options of a `TypedDict`."""
    for module in MODULES:
        for name in module.__all__:
            thing = getattr(module, name)
            if name.startswith("Scripted") or is_typeddict(thing):
                continue
            members = vars(thing).items() if inspect.isclass(thing) else [("", thing)]
            for member, function in members:
                if not callable(function) or (member.startswith("_") and member != "__init__"):
                    continue
                try:
                    parameters = inspect.signature(function).parameters.values()
                except (TypeError, ValueError):
                    continue
                if any("Unpack[" in str(each.annotation) for each in parameters):
                    yield f"{name}.{member}".removesuffix(".__init__").removesuffix(".")


SERVER = Server("s")


async def of_client(call: Callable[[Client], Awaitable[Any]]) -> None:
    """Make ``call`` of a client that is closed: to send anything would raise `ConnectionLost`."""
    async with open_memory(SERVER) as client:
        pass
    await call(client)


async def of_group(call: Callable[[Group], Awaitable[Any]]) -> None:
    """Make ``call`` of a group that is closed, and has no members."""
    async with open_group({}) as group:
        pass
    await call(group)


CALLS: dict[str, Callable[[Any], Any]] = {
    "Address.open": lambda options: Address("tcp://127.0.0.1:1").open(**options),
    "Client.call_tool": lambda options: of_client(lambda client: client.call_tool("tool", **options)),
    "Client.start_task": lambda options: of_client(lambda client: client.start_task("tool", **options)),
    "Command.open": lambda options: Command(["no such program"]).open(**options),
    "Group.call_from_app": lambda options: of_group(lambda group: group.call_from_app("member", "tool", **options)),
    "Group.call_tool": lambda options: of_group(lambda group: group.call_tool("tool", **options)),
    "Group.start_task": lambda options: of_group(lambda group: group.start_task("tool", **options)),
    "InMemory.open": lambda options: InMemory(SERVER).open(**options),
    "MemberDescription(options=...)": lambda options: MemberDescription(["no such program"], options=options),
    "RecordingContext": lambda options: testing.RecordingContext(**options),
    "RequestContext.sample": lambda options: RequestContext().sample("hello", max_tokens=1, **options),
    "Skills": lambda options: Skills("no such folder", **options),
    "Skills.add_files": lambda options: Skills().add_files("name", {}, **options),
    "Skills.add_folder": lambda options: Skills().add_folder("no such folder", **options),
    "Skills.add_folders": lambda options: Skills().add_folders("no such folder", **options),
    "assert_replays": lambda options: testing.assert_replays("no such file", SERVER, **options),
    "http_app": lambda options: http_app(SERVER, **options),
    "open_client": lambda options: open_client(None, **options),  # type: ignore[arg-type]
    "open_group": lambda options: open_group({}, **options),
    "open_http": lambda options: open_http("http://127.0.0.1:1/mcp", **options),
    "open_memory": lambda options: open_memory(SERVER, **options),
    "open_scripted_server": lambda options: testing.open_scripted_server(None, **options),  # type: ignore[arg-type]
    "open_stdio": lambda options: open_stdio(["no such program"], **options),
    "open_tcp": lambda options: open_tcp("127.0.0.1", 1, **options),
    "open_unix": lambda options: open_unix("no such socket", **options),
    "open_websocket": lambda options: open_websocket("ws://127.0.0.1:1/mcp", **options),
    "run_process_tree": lambda options: run_process_tree(["no such program"], **options),
    "serve_http": lambda options: serve_http(SERVER, **options),
    "serve_tcp": lambda options: serve_tcp(SERVER, **options),
    "serve_unix": lambda options: serve_unix(SERVER, "no such folder/socket", **options),
    "serve_websocket": lambda options: serve_websocket(SERVER, **options),
}
OF_OTHERS = {"Server.tool", "Server.resource", "Server.prompt", "WorkerContext.sample"}
"""Checked in test_foreign_names.py; and the same function in a thread."""


@pytest.mark.parametrize("function", CALLS)
async def test_misspelled_option_raises_type_error_that_names_the_function_and_its_options(function: str) -> None:
    with pytest.raises(TypeError, match="no option") as raised:
        found = CALLS[function]({"misspelt": 1})
        if hasattr(found, "__aenter__"):
            async with found:
                pass
        else:
            await found
    words = str(raised.value)
    assert words.startswith(f"{function} has no option 'misspelt'. Its options: "), words
    assert "misspelt" not in words.partition("Its options: ")[2]


@pytest.mark.parametrize("module", [aio, blocking])
@pytest.mark.parametrize("name", ["open_http", "open_group", "open_memory", "open_stdio", "open_tcp", "open_unix"])
def test_error_for_a_misspelled_option_of_an_asyncio_or_blocking_function_suggests_the_correct_name(
    module: Any, name: str
) -> None:
    arguments: dict[str, tuple[Any, ...]] = {"open_group": ({},), "open_tcp": ("127.0.0.1", 1), "open_stdio": (["x"],)}
    with pytest.raises(
        TypeError, match=f"^{name} has no option 'cal_timeout'; did you mean call_timeout=\\? Its options"
    ):
        getattr(module, name)(*arguments.get(name, (SERVER,)), cal_timeout=1)


SERVER_CLASS: Any = Server
OPEN_TCP: Any = open_tcp


def test_every_public_function_with_options_is_tested_with_a_misspelled_option() -> None:
    assert set(option_takers()) - OF_OTHERS <= CALLS.keys()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: SERVER_CLASS("s", transport_security=None),
            r"write serve_http\(server, allowed_hosts=\[...\], allowed_origins=\[...\]\)\. ",
        ),
        (lambda: OPEN_TCP("127.0.0.1", 1, timeout=3), r"'timeout'; write call_timeout=\.\.\.\. Its options"),
        (lambda: _keywords_checked(host_names=[]), r"'host_names'; write allowed_hosts=\[\.\.\.\]\. Its options"),
    ],
)
def test_option_with_the_name_in_another_sdk_raises_type_error_that_names_the_replacement(
    call: Any, words: str
) -> None:
    with pytest.raises(TypeError, match=words):
        call()


def _keywords_checked(**options: Any) -> None:
    trio.run(lambda: serve_http(SERVER, **options))


# Advice


class _Roots:
    """What names in advice stand for, where no import says so."""

    server = Server
    client = Client
    ctx = RequestContext
    trio = trio
    logging = logging


NAMES: dict[str, Any] = {
    **names(*FACE),
    **{name: thing for name, thing in vars(_Roots).items() if not name.startswith("_")},
    **{module.__name__.rpartition(".")[2]: module for module in MODULES},
}
FILLED_IN = "filled_in"
"""Stands for what an f-string fills in."""
EXAMPLES = {"function", "other", "handler", "main", "connect", "Database", "State", "Form", "Class", "target", "app"}
"""Names of a reader's own."""

TABLES: dict[str, dict[str, str]] = {
    name: dict(table)
    for name, table in vars(mistakes).items()
    if isinstance(table, dict) and name.isupper() and not name.startswith(("_ASYNCIO", "_LIBRARIES"))
}
ADVICE = [(f"{table}[{key!r}]", text) for table, entries in TABLES.items() for key, text in entries.items()]


def calls_in(text: str) -> Iterator[ast.Call]:
    """The calls in a text for people, as far as they are Python."""
    for found in re.finditer(r"@?[A-Za-z_][\w.]*\(", text):
        depth = 0
        for at in range(found.end() - 1, len(text)):
            depth += (text[at] in "([{") - (text[at] in ")]}")
            if depth == 0:
                code = text[found.start() : at + 1].lstrip("@")
                try:
                    parsed = ast.parse(code, mode="eval").body
                except SyntaxError:
                    break
                if isinstance(parsed, ast.Call):
                    yield parsed
                break


def resolved(node: ast.expr) -> Any:
    """What a name, or an attribute of one, is here; `None` for a name of the reader's own."""
    if isinstance(node, ast.Name):
        return NAMES.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = resolved(node.value)
        if owner is Client and not hasattr(Client, node.attr):
            owner = ConnectedClient
        thing = None if owner is None else getattr(owner, node.attr)
        return None if isinstance(thing, property) else thing
    return None


def takes(function: Any, call: ast.Call) -> set[str]:
    """The keywords of ``call`` that ``function`` does not take."""
    given = {each.arg for each in call.keywords if each.arg not in (None, FILLED_IN)}
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return set()
    known = set(parameters)
    for parameter in parameters.values():
        if parameter.kind is not parameter.VAR_KEYWORD:
            continue
        if "Unpack[" not in str(parameter.annotation):
            if parameter.name != "foreign":
                return set()
            continue
        known |= set(_keywords_of(function)) if not _is_method(function) else _options_of_method(function)
    return given - known


def _is_method(function: Any) -> bool:
    return "." in getattr(function, "__qualname__", "")


def _options_of_method(function: Any) -> set[str]:
    annotation = [str(each.annotation) for each in inspect.signature(function).parameters.values()][-1]
    kind = eval(annotation, {"Unpack": Unpack}, vars(sys.modules[inspect.unwrap(function).__module__]))
    return set(get_args(kind)[0].__optional_keys__)


@pytest.mark.parametrize(("place", "text"), ADVICE, ids=[place for place, _ in ADVICE])
def test_every_replacement_suggested_for_a_name_of_another_sdk_exists(place: str, text: str) -> None:
    for call in calls_in(text):
        function = resolved(call.func)
        if function is not None:
            assert not takes(function, call), ast.unparse(call)
    for name in re.findall(r"\b(?:ctx|server|client|trio)(?:\.\w+)+", text):
        root, *attributes = name.split(".")
        thing = NAMES[root]
        for attribute in attributes:
            if not hasattr(thing, attribute):
                assert f"self.{attribute}" in inspect.getsource(thing), f"{thing} has no {attribute}"
                break
            thing = getattr(thing, attribute)
            if isinstance(thing, property):
                break
    for name in re.findall(r"\b(?:open|serve|http|run_process)_\w+|\b[A-Z][a-z]+[A-Z]\w+|\bTyped\w+", text):
        assert name in NAMES or name in EXAMPLES, name


def strings() -> Iterator[tuple[str, str]]:
    """The texts in the source, docstrings included, each with its place; what is filled in is left out."""
    for file in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [each.value if isinstance(each, ast.Constant) else FILLED_IN for each in node.values]
                yield f"{file.relative_to(SOURCE)}:{node.lineno}", "".join(map(str, parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield f"{file.relative_to(SOURCE)}:{node.lineno}", node.value


def test_code_suggested_in_error_messages_matches_the_function_signatures() -> None:
    wrong = list[str]()
    seen = 0
    for place, text in chain(strings(), ADVICE):
        for call in calls_in(text):
            try:
                function = resolved(call.func)
            except AttributeError as error:
                wrong.append(f"{place}: {ast.unparse(call)}: {error}")
                continue
            if function is None or not callable(function) or not call.keywords:
                continue
            seen += 1
            if unknown := takes(function, call):
                wrong.append(f"{place}: {ast.unparse(call)} has no {sorted(unknown)}")
    assert not wrong, "\n".join(wrong)
    assert seen > 100, "they were looked for in the right place"

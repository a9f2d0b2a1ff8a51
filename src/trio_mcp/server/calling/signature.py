"""`UserFunction`: a handler function with its argument types, their JSON Schema, the name of its context parameter, and
how to call it."""

from __future__ import annotations

import copy
import functools
import inspect
import sys
import typing
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args, get_origin

import attrs
import msgspec
from msgspec.structs import asdict

from ...classes import frozen
from ...concurrency.workers import await_result, run_in_worker
from ...jsonrpc.sizes import is_checkable
from ...protocol.fields import JSONObject
from ...protocol.foreign_types import is_model, read_foreign, unaliased, write_foreign
from ...protocol.types.lifecycle import Icon
from ...protocol.user_types import schema_of, types_in, with_whole_numbers
from ...runtime.requests.scope import RequestScope
from ..annotations import (
    as_msgspec,
    check_foreign_classes,
    check_keys,
    check_metadata,
    hashed_items_limit,
    needs_options,
    parameters_in,
)
from ..context.request_context import GetTaskHost, LiveContext
from ..options import PromptOptions, is_context

if TYPE_CHECKING:
    from .provided import Provide, Provider


class BadArguments(ValueError):
    """Raised if the arguments of a call don't fit the handler's signature. The client gets the exception's text."""


@frozen(eq=False)
class UserFunction:
    """A handler function with its argument types, inspected once when it is registered.

    ``schema`` is the JSON Schema of its arguments. ``returns`` is its return annotation, `inspect.Parameter.empty` if
    there is none. ``doc`` is its docstring, cleaned up.
    """

    function: Callable[..., Any]
    is_async: bool
    context_name: str | None
    names: tuple[str, ...]
    schema: JSONObject
    returns: Any
    doc: str | None
    _model: type[msgspec.Struct]
    _as_dict: Callable[[msgspec.Struct], dict[str, Any]]
    _needs_options: bool
    """True if a parameter has a type that msgspec doesn't know, or a dict whose keys must be parsed from strings."""
    _hashed_items_limit: int | None
    """Maximum number of items and members in all arguments together. `None` for no limit."""
    once: tuple[Provider, ...] = ()
    """The ``once=True`` providers of the handler's parameters."""

    @classmethod
    def of(cls, function: Callable[..., Any], *, asyncio: bool = False) -> UserFunction:
        """Inspect the function of a handler, and return its `UserFunction`.

        With ``asyncio``, the handler runs in its server's event loop. Raises `TypeError`, which names the parameter, if
        a parameter cannot be used.
        """
        name = _checked_name(function)
        _check_no_generator(name, function)
        if asyncio:
            _check_async(name, function)
        hints = _hints(name, function)
        doc, described = parameters_in(inspect.getdoc(function))
        context_name: str | None = None
        fields: list[Any] = []
        provided: dict[str, Provide] = {}
        for parameter in inspect.signature(function).parameters.values():
            hint = hints.get(parameter.name, Any)
            check_foreign_classes(f"{name}: parameter {parameter.name!r}", hint)
            if is_context(hint) or (parameter.name == "ctx" and parameter.annotation is parameter.empty):
                context_name = parameter.name
                continue
            if not fields:
                _check_no_method(name, parameter)
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise TypeError(_nameless(name, parameter))
            if (note := _provided(name, parameter, hint)) is not None:
                provided[parameter.name] = note
                continue
            fields.append(_field(name, parameter, hint, described.get(parameter.name)))
        check_foreign_classes(f"what {name} returns", hints.get("return"))
        model, schema, found = _model(name, fields)
        called, context_name, once = _called(function, provided, context_name, asyncio=asyncio)
        return cls(
            called,
            inspect.iscoroutinefunction(called),
            context_name,
            tuple(field[0] for field in fields),
            schema,
            _returned(hints.get("return", inspect.Parameter.empty)),
            doc,
            model,
            asdict if model.__struct_fields__ == model.__struct_encode_fields__ else _by_parameter,
            needs_options(found),
            hashed_items_limit(found),
            once,
        )

    def copied_fields(self) -> list[Any]:
        """Return this object's fields, as constructor arguments for a copy whose class is a subclass of
        `UserFunction`."""
        return [getattr(self, field.name) for field in attrs.fields(UserFunction)]

    def listed(self, options: PromptOptions) -> tuple[str, str | None, str | None, list[Icon] | None]:
        """Return the name, title, description and icons of a tool, resource or prompt. A value that ``options`` doesn't
        contain comes from the function."""
        name = options.get("name") or self.function.__name__
        description, icons = options.get("description"), options.get("icons")
        return (
            name,
            options.get("title"),
            description if description is not None else self.doc,
            list(icons) if icons else None,
        )

    def call(
        self, scope: RequestScope, lifespan: Any, bound: dict[str, Any], tasks: GetTaskHost = None
    ) -> Awaitable[Any]:
        """Call the handler function with the arguments ``bound``, as returned by `bind`.

        An async function runs in the current task, and a plain function in a worker thread. If a plain function returns
        an awaitable, the awaitable is awaited. ``tasks`` returns the host of the caller's tasks.
        """
        if self.is_async:
            if self.context_name is not None:
                bound[self.context_name] = LiveContext(scope, lifespan, tasks)
            return self.function(**bound)
        if self.context_name is not None:
            from ..context.worker_context import WorkerContext  # lazy import: most handlers are async

            bound[self.context_name] = WorkerContext(LiveContext(scope, lifespan, tasks))
        call, threads = partial(self.function, **bound), scope.runner.workers.share(scope.ticket.caller)
        # Read `scope.runner` only when it's needed: if the request becomes a task, another `RequestRunner` runs it.
        return await_result(run_in_worker(call, threads, lambda: scope.runner.graces, scope.thread_abandoned))

    def bind(self, arguments: JSONObject, *, strict: bool = True) -> dict[str, Any]:
        """Return ``arguments`` converted to the annotated types.

        Raises `BadArguments` if the arguments don't fit. With ``strict=False``, arguments that don't fit are parsed
        again by `read_leniently`.
        """
        if self._hashed_items_limit is not None:  # most handlers have no limit: skip the call of _check_size
            self._check_size(arguments)
        try:
            if strict and not self._needs_options:
                bound = msgspec.convert(arguments, self._model)
            else:  # faster without options
                bound = msgspec.convert(arguments, self._model, strict=strict, str_keys=True, dec_hook=read_foreign)
        except (msgspec.ValidationError, ValueError, TypeError) as error:
            bound = self._repaired(arguments, strict, error)
        return self._as_dict(bound)

    def _check_size(self, arguments: JSONObject) -> None:
        most = self._hashed_items_limit
        if most is not None and not is_checkable(arguments, most):
            raise BadArguments(
                f"the arguments are too large: they may have at most {most:,} items and members in total, because the "
                "parameters include a set, a dict with non-string keys or a list of models. (An integer of more than "
                "64 bits counts as a thousand items or more.)"
            )

    def _repaired(self, arguments: JSONObject, strict: bool, fault: Exception) -> msgspec.Struct:
        # lazy import: only invalid arguments need it
        from ...protocol.schema_reading import read_leniently, with_choices

        try:
            if strict:
                read = with_whole_numbers(arguments, self._model, fault)
            else:
                read = read_leniently(self.schema, arguments)
            if read is not arguments:
                self._check_size(read)  # parsed strings may contain large JSON values, so check the size again
                return msgspec.convert(read, self._model, strict=strict, str_keys=True, dec_hook=read_foreign)
        except (msgspec.ValidationError, ValueError, TypeError) as error:
            fault = error
        raise BadArguments(with_choices(str(fault), self.schema)) from None


def _hints(name: str, function: Callable[..., Any]) -> dict[str, Any]:
    """Return the resolved annotations of a function. Raises `TypeError` if an annotation cannot be resolved."""
    try:
        return typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise TypeError(
            f"{name}: an annotation could not be resolved: {error}. Define the type at the top of its module."
        ) from None


def _returned(hint: Any) -> Any:
    """Return the annotation of a handler's result. If it is an ``Awaitable`` or ``Coroutine``, return the type of the
    awaited value.

    Type aliases are resolved, except the alias for any JSON.
    """
    kind = get_origin(hint) or hint
    if isinstance(kind, type) and kind.__module__ == "collections.abc" and issubclass(kind, Awaitable):
        hint = get_args(hint)[-1] if get_args(hint) else inspect.Parameter.empty
    return hint if (known := unaliased(hint)) is Any else known


def _checked_name(function: Callable[..., Any]) -> str:
    """Return the name of the handler ``function``, to show it in error messages. Raises `TypeError` unless the handler
    is a function or method."""
    # Check for functools.partial first: from CPython 3.14 on, inspect.isroutine() is true for a partial.
    if isinstance(function, functools.partial):
        raise TypeError(
            "a handler must not be a functools.partial: write a function that calls it. For a parameter that "
            "clients must not pass, write Annotated[Type, Provide(function)]"
        )
    if inspect.isroutine(function) and callable(function):
        return function.__qualname__
    if inspect.isclass(function):
        raise TypeError(
            f"{function.__name__} is a class, but a handler must be a function. Register methods of an instance:\n"
            f"    wrong:  @server.tool above class {function.__name__}\n"
            f"    right:  server.tool({function.__name__}().method)"
        )
    if callable(function):
        kind = type(function).__name__
        raise TypeError(f"a handler must not be an instance of {kind}: write server.tool(name='...')(thing.__call__)")
    raise TypeError(f"{function!r} is not a function. To name a tool or prompt, write @server.tool(name='add')")


def _nameless(name: str, parameter: inspect.Parameter) -> str:
    """Return advice for an error message about a parameter that clients can't pass by name, such as a positional-only
    parameter: how to write it instead."""
    written, instead = {
        parameter.VAR_POSITIONAL: (f"*{parameter.name}", f"{parameter.name}: list[int]"),
        parameter.VAR_KEYWORD: (f"**{parameter.name}", f"{parameter.name}: dict[str, int]"),
    }.get(parameter.kind, (f"{parameter.name}, /", parameter.name))
    function = name.rpartition(".")[2]
    return (
        f"{name}: parameter {parameter.name!r} cannot be passed by name. Write ordinary parameters:\n"
        f"    wrong:  def {function}({written})\n"
        f"    right:  def {function}({instead})"
    )


def _called(
    function: Callable[..., Any], provided: dict[str, Provide], context_name: str | None, *, asyncio: bool
) -> tuple[Callable[..., Any], str | None, tuple[Provider, ...]]:
    """Return the callable that runs the handler ``function``, the name of the handler's context parameter, and its
    providers with ``once=True``."""
    if provided:
        from .provided import CONTEXT, InjectedHandler

        provisions = InjectedHandler(function, provided, context_name, on_asyncio=asyncio)
        return provisions.call, CONTEXT, provisions.once
    if asyncio:
        from ..context.worker_context import handler_on_asyncio  # lazy import: few servers have asyncio handlers

        return handler_on_asyncio(function, context_name), context_name, ()
    return function, context_name, ()


def _check_async(name: str, function: Callable[..., Any]) -> None:
    if not inspect.iscoroutinefunction(function):
        raise TypeError(
            f"{name}: asyncio=True needs an async function; a plain def runs in a worker thread:\n"
            f"    wrong:  def {function.__name__}\n"
            f"    right:  async def {function.__name__}"
        )


def _check_no_generator(name: str, function: Callable[..., Any]) -> None:
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise TypeError(
            f"{name} is a generator, but a request has only one answer: return a list. To report something "
            "before the end, call ctx.progress() or ctx.log."
        )


def _check_no_method(name: str, first: inspect.Parameter) -> None:
    if first.name in ("self", "cls") and first.annotation is first.empty:
        method = name.rpartition(".")[2]
        raise TypeError(
            f"{name} is a method, so clients would have to pass {first.name!r}. Register the method of an instance:\n"
            f"    wrong:  @server.tool above def {method}({first.name}, …)\n"
            f"    right:  server.tool(thing.{method})"
        )


def _provided(name: str, parameter: inspect.Parameter, hint: Any) -> Provide | None:
    """Return the `Provide` of a parameter, if it has one. Raises `TypeError` for a ``Depends`` of another package."""
    for note in (parameter.default, *getattr(hint, "__metadata__", ())):
        names = [kind.__name__.strip("_") for kind in type(note).__mro__]
        if "Depends" in names or (note is parameter.default and any(name.startswith("Depend") for name in names)):
            raise TypeError(
                f"{name}: parameter {parameter.name!r}: Depends of another package has no effect here:\n"
                f"    wrong:  {parameter.name}: Database = Depends(connect)\n"
                f"    right:  {parameter.name}: Annotated[Database, Provide(connect)]"
            )
    # If the module that defines `Provide` was never imported, the parameter can't have a `Provide`.
    if f"{__package__}.provided" not in sys.modules:
        return None
    from .provided import provide_of

    return provide_of(name, parameter, hint)


def _field(name: str, parameter: inspect.Parameter, hint: Any, described: str | None) -> tuple[Any, ...]:
    try:
        hint, default = as_msgspec(hint, parameter.default)
    except TypeError as error:
        raise TypeError(f"{name}: parameter {parameter.name!r}: {error}") from None
    check_metadata(name, parameter.replace(default=default), hint)
    if default is None and not _allows_none(hint):
        said = parameter.annotation
        kind = said if isinstance(said, str) else inspect.formatannotation(said)
        raise TypeError(
            f"{name}: parameter {parameter.name!r} has the default None, which its annotation does not allow:\n"
            f"    wrong:  {parameter.name}: {kind} = None\n"
            f"    right:  {parameter.name}: {kind} | None = None"
        )
    hint = _with_descriptions(hint, described)
    if default is parameter.empty:
        return (parameter.name, hint)
    if isinstance(default, list | dict | set | bytearray) or is_model(cast("Any", type(default))):
        keep = copy.deepcopy(cast("Any", default))
        return (parameter.name, hint, msgspec.field(default_factory=lambda: copy.deepcopy(keep)))
    try:
        if not isinstance(default, type(msgspec.field())):
            msgspec.to_builtins(default, str_keys=True)
    except TypeError:  # msgspec cannot put some defaults into the schema, for example a path
        with suppress(TypeError):
            plain = msgspec.to_builtins(default, str_keys=True, enc_hook=write_foreign)
            hint = Annotated[hint, msgspec.Meta(extra_json_schema={"default": plain})]
        return (parameter.name, hint, msgspec.field(default_factory=lambda: default))
    return (parameter.name, hint, default)


def _allows_none(hint: Any) -> bool:
    try:
        msgspec.convert(None, hint, dec_hook=read_foreign)
    except (msgspec.ValidationError, ValueError):
        return False
    except TypeError:  # msgspec doesn't support this type, and raises a TypeError
        return True
    return True


def _with_descriptions(hint: Any, described: str | None) -> Any:
    """Return an annotation with descriptions added as `msgspec.Meta`. They come from plain strings in ``Annotated``,
    from ``Doc`` (PEP 727), or else from ``described``."""
    kind, *notes = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    for note in notes:
        text = note if isinstance(note, str) else getattr(note, "documentation", None)
        kind = Annotated[kind, msgspec.Meta(description=text) if isinstance(text, str) else note]
        described = None if isinstance(text, str) or getattr(note, "description", None) is not None else described
    return kind if described is None else Annotated[kind, msgspec.Meta(description=described)]


def _model(name: str, fields: list[Any]) -> tuple[type[msgspec.Struct], JSONObject, list[msgspec.inspect.Type]]:
    """Return a class whose fields are the arguments of a handler, the class's JSON Schema, and the types of its
    fields."""
    try:
        # msgspec doesn't allow field names that begin with two underscores.
        members = [("renamed" * name.startswith("__") + name, *field) for name, *field in fields]
        names = {member[0]: field[0] for member, field in zip(members, fields, strict=True)}
        model = msgspec.defstruct("Arguments", members, kw_only=True, forbid_unknown_fields=True, rename=names)
        schema = schema_of(model)
        check_keys(found := types_in(model))
    except TypeError as error:
        raise TypeError(f"{name}: {_misfit(fields) or error}") from None
    schema.pop("title", None)
    return model, schema, found


def _by_parameter(bound: msgspec.Struct) -> dict[str, Any]:
    return {field.encode_name: getattr(bound, field.name) for field in msgspec.structs.fields(bound)}


def _misfit(fields: list[Any]) -> str | None:
    """Return the name of the first parameter that has no JSON Schema, and the reason. Return `None` if all parameters
    have a JSON Schema."""
    for name, hint, *_ in fields:
        try:
            schema_of(hint)
            check_keys(types_in(hint))
        except TypeError as error:
            return (
                f"parameter {name!r}: {error}. Annotate it with a type that JSON can represent: str, "
                "list[int] or a dataclass, for example. The context is a `RequestContext`."
            )
    return None

"""Translation of messages from one revision to another, without loss of members that neither revision knows."""

from __future__ import annotations

from typing import Any, cast

from ..protocol.converters import structure, unstructure
from ..protocol.fields import JSONObject
from ..protocol.meta import SERVER_INFO
from ..protocol.revisions import Revision


def translated(data: Any, kind: Any, said: Revision, wanted: Revision) -> Any:
    """Return ``data``, a ``kind`` in the terms of revision ``said``, translated to the terms of revision ``wanted``.

    For equal revisions ``data`` is returned unchanged and unchecked. Otherwise members that ``kind`` does not have are
    kept unchanged, and members that ``wanted`` does not have are left out. Raises `ValueError` for data that is no
    ``kind``, and `NotExpressible` for data that ``wanted`` cannot express.
    """
    if said is wanted:
        return data
    meant = structure(data, kind)
    return _merged(data, unstructure(meant, said), unstructure(meant, wanted))


def translated_result(data: JSONObject, kind: Any, said: Revision, wanted: Revision) -> JSONObject:
    """Return a result as `translated` does, without the members that all results have in ``said`` but not in
    ``wanted``."""
    result = cast("JSONObject", translated(data, kind, said, wanted))
    if said.result_type and not wanted.result_type:
        result = {name: value for name, value in result.items() if name != "resultType"}
    meta = result.get("_meta")
    if isinstance(meta, dict) and not wanted.server_info_in_meta:
        kept = {name: value for name, value in cast("JSONObject", meta).items() if name != SERVER_INFO}
        result = {**result, "_meta": kept}
        if not kept:
            del result["_meta"]
    return result


def _merged(data: Any, known: Any, wanted: Any) -> Any:
    """Return ``wanted`` with the parts of ``data`` that are not in ``known``, which holds the understood part of
    ``data``."""
    if isinstance(data, dict) and isinstance(known, dict) and isinstance(wanted, dict):
        came, understood = cast("JSONObject", data), cast("JSONObject", known)
        merged: JSONObject = {
            name: _merged(came[name], understood[name], value) if name in came and name in understood else value
            for name, value in cast("JSONObject", wanted).items()
        }
        return merged | {name: value for name, value in came.items() if name not in understood}
    if isinstance(data, list) and isinstance(known, list) and isinstance(wanted, list):
        items, ours, theirs = cast("list[Any]", data), cast("list[Any]", known), cast("list[Any]", wanted)
        if len(items) == len(ours) == len(theirs):
            return [_merged(*each) for each in zip(items, ours, theirs, strict=True)]
    return cast("Any", wanted)

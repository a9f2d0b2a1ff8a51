"""Pages of lists such as ``tools/list``. Their items are encoded once per protocol revision, not once per client."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from ..jsonrpc.codec import encode_readable
from .converters import unstructure
from .revisions import Revision

_MOST_KEPT: Final = 32 * 1024 * 1024
"""Maximum bytes of cached JSON texts for one list. Items beyond this maximum are encoded for each page."""
_LEVELS: Final = 3
"""Number of JSON levels around an item of a list: the message, the result and the list."""


class ListedTexts:
    """Caches the JSON texts of the items of one list, for each protocol revision.

    An item can be cached between the calls of `add` and `drop` for it.
    """

    def __init__(self) -> None:
        self._items: dict[int, Any] = {}
        """The items that can be cached, keyed by identity."""
        self._texts: dict[Revision, dict[int, tuple[Any, bytes]]] = {}
        """The items with their JSON texts. Keeping an item ensures that no other object gets the same identity."""
        self._left = _MOST_KEPT

    def add(self, item: Any) -> None:
        """Allow this cache to store JSON texts of ``item``."""
        self._items[id(item)] = item

    def drop(self, item: Any) -> None:
        """Remove ``item`` and its JSON texts from the cache."""
        self._items.pop(id(item), None)
        for texts in self._texts.values():
            if (found := texts.pop(id(item), None)) is not None:
                self._left += len(found[1])

    def of(self, page: list[Any], revision: Revision) -> msgspec.Raw:
        """Return the JSON text of a list ``page`` for the protocol revision ``revision``.

        Raises `NotExpressible` or `NotSerializable` if an item can't be encoded.
        """
        known = self._texts.setdefault(revision, {})
        texts = [found[1] if (found := known.get(id(item))) else self._written(item, revision) for item in page]
        return msgspec.Raw(b"[%b]" % b",".join(texts))

    def _written(self, item: Any, revision: Revision) -> bytes:
        text = encode_readable(unstructure(item, revision), _LEVELS)
        if id(item) in self._items and len(text) <= self._left:
            self._left -= len(text)
            self._texts[revision][id(item)] = item, text
        return text


class CachedPage(list[Any]):
    """A page of a list whose items have cached JSON texts, in ``texts``.

    It can be changed like any list, because items without a cached text are simply encoded.
    """

    __slots__ = ("texts",)

    def __init__(self, items: Iterable[Any], texts: ListedTexts) -> None:
        super().__init__(items)
        self.texts = texts

    def __reduce_ex__(self, _: Any) -> Any:
        return list, (list(self),)  # copy and pickle this page as a plain list, without its cache

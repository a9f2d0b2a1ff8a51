"""Resource URIs: their normal form (RFC 3986, 6.2.2), and the templates that URIs are matched against.

The templates are those of RFC 6570 with simple ``{name}`` and reserved ``{+name}`` expressions and, at the end, the
query parameters ``{?name,name}`` or ``{&name,name}``.
"""

from __future__ import annotations

import re
from binascii import unhexlify
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Final

from ...jsonrpc.errors import INVALID_PARAMS, CodedError
from ...lazy import lazy_pattern

LONGEST_URI: Final = 8192
"""Maximum length of a URI in characters. Each URI is matched against all templates, and stored during a
subscription."""

_SCHEME: Final = lazy_pattern(r"[A-Za-z][A-Za-z0-9+.-]*:|\{")
_BEFORE_PATH: Final = lazy_pattern(r"\A[A-Za-z][A-Za-z0-9+.-]*:(?://(?:\{[^{}?&]*\}|[^/?#{]++)*+)?")
_PATH: Final = lazy_pattern(r"(/[^?#]*)(.*)", re.DOTALL)
_AUTHORITY: Final = lazy_pattern(r"(?:[^]\[@ \"<>\\^`|]*@)?(?:\[[0-9A-Fa-f:.]+\]|[^]\[@: \"<>\\^`|]*)(?::[0-9]{0,5})?")
_LEGAL: Final = r"!#$&'()*+,./0-9:;=?@A-Z\[\]_a-z~%\-"
_ESCAPE: Final = lazy_pattern("%[0-9A-Fa-f]{2}")
_ESCAPES: Final = lazy_pattern(rb"(?:%[0-9A-Fa-f]{2})+")
_PLAIN: Final = lazy_pattern(
    r"(?!https?:|wss?:|ftp:)[a-z][a-z0-9+.-]*+:(?://[!$&'()*+,.0-9:;=@_a-z~-]*+(?<!:)(?=[/?#]|\Z)|(?!//))"
    r"[!#$&'()*+,./0-9:;=?@A-Z\[\]_a-z~-]*+"
)
"""Matches most URIs that are already in normal form. URIs with the segments ``.`` or ``..`` match too, although they
aren't in normal form."""
_UNRESERVED: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_PORTS: Final = {"http:": "80", "https:": "443", "ws:": "80", "wss:": "443", "ftp:": "21"}
"""Schemes whose URIs may have an empty path, which means ``/`` (RFC 3986, 6.2.3), with their default ports."""
_RECENT: Final = 64
"""Maximum number of URIs whose normal forms are cached."""

_ANY_EXPRESSION: Final = lazy_pattern(r"\{[^{}]*\}")
_CAPITALS: Final = lazy_pattern(r"\{[^{}]*\}|[A-Z]+")
_EXPRESSION: Final = lazy_pattern(r"\{(\+?)([A-Za-z_][A-Za-z0-9_]*)(\*?)\}")
_QUERY: Final = lazy_pattern(r"\{([?&])([A-Za-z_][A-Za-z0-9_]*(?:,[A-Za-z_][A-Za-z0-9_]*)*)\}\Z")
_DELIMITERS: Final = frozenset("/?#")
_RESERVED: Final = lazy_pattern(r"[:@!$&'()*+,;=\[\]]")
"""Characters that must also be percent-encoded in the value of ``{name}`` (RFC 6570, 3.2.2)."""
_MALFORMED: Final = lazy_pattern("%(?![0-9A-Fa-f]{2})")
_CONTROL: Final = lazy_pattern(r"[\x00-\x1f\x7f-\x9f]")
_SLASH: Final = lazy_pattern(r"[/\\]")


def check_length(uri: str) -> None:
    """Raise `CodedError` (-32602) if a URI from a client has more than `LONGEST_URI` characters."""
    if len(uri) > LONGEST_URI:
        raise CodedError(INVALID_PARAMS, f"Invalid params: a URI may have at most {LONGEST_URI} characters")


def checked_uri(uri: str) -> str:
    """Validate the URI or URI template of a resource, and return it in the form that clients see in lists.

    Characters that URIs cannot contain, such as ``é`` or a space, are percent-encoded. Raises `ValueError` if the URI
    is invalid.
    """
    if len(uri) <= LONGEST_URI and uri.count(":") == 1 and "@" not in uri and _PLAIN.fullmatch(uri):
        return uri  # a fast path for most URIs, which doesn't compile the other patterns
    shown, plain = uri[:200], _ANY_EXPRESSION.sub("0", uri)
    if not _SCHEME.match(uri):
        raise ValueError(f"{shown!r} is not a URI: it must begin with a scheme, for example 'data://{shown}'")
    if len(uri) > LONGEST_URI:
        raise ValueError(f"{uri[:40]}… has {len(uri)} characters; a URI may have at most {LONGEST_URI}")
    if _CONTROL.search(plain) or plain != plain.strip():
        raise ValueError(f"{shown!r} is not a URI: it has control characters, or a space at its beginning or end")
    if (stray := _MALFORMED.search(plain)) is not None:
        raise ValueError(f"{shown!r} is not a URI: write %25 for the % in {plain[stray.start() : stray.start() + 3]!r}")
    scheme, slashes, host, _ = _parts(plain)
    if slashes and (not _AUTHORITY.fullmatch(host) or (not host and scheme in _PORTS)):
        rest = shown.partition("//")[2]
        raise ValueError(
            f"{shown!r} is not a URI: the host, between // and the next /, must have no spaces, and a colon only "
            f"before a port. If that part is not a host, write {f'{scheme}///{rest}'!r}"
        )
    return _quoted(uri)


@lru_cache(_RECENT)
def normal_uri(uri: str) -> str:
    """Return the normal form of a URI or template (RFC 3986, 6.2.2). Resources are registered under this form.

    Scheme and host are in lower case, only characters that need it are percent-encoded, and a URI has no ``.`` and
    ``..`` segments. Reserved characters stay distinct from their encodings: ``%2F`` isn't ``/``. A URI that is too long
    is returned unchanged.
    """
    normal = _encoded(uri)[1]
    if "/." not in normal or UriTemplate.is_template(uri):
        return normal
    *before, rest = _parts(normal)
    if (found := _PATH.fullmatch(rest)) is None:
        return normal
    segments, kept = found[1].split("/"), [""]
    for segment in segments[1:]:  # RFC 3986, 5.2.4
        if segment == "..":
            del kept[max(1, len(kept) - 1) :]
        elif segment != ".":
            kept.append(segment)
    path = "/".join([*kept, ""] if segments[-1] in (".", "..") else kept)
    return "".join((*before, path, found[2]))


@lru_cache(_RECENT)
def _encoded(uri: str) -> tuple[str, str]:
    """Return the normal form of ``uri`` in two variants. The first variant keeps the case of the host, because the host
    may contain the value of a template parameter. The second variant has the host in lower case.

    Both variants keep the segments ``.`` and ``..``, which no template value may have. A template value is at the same
    position in both variants.
    """
    if len(uri) > LONGEST_URI or _PLAIN.fullmatch(uri) or _MALFORMED.search(uri):
        return uri, uri  # if there are stray % signs, decoding could create a new escape, as in "%%32e"
    scheme, slashes, authority, rest = _parts(_quoted(_ESCAPE.sub(_unescaped, uri), "surrogatepass"))
    scheme, start = scheme.lower(), authority.rfind("@") + 1
    name, _, port = authority.rpartition(":")
    if name[start:] and port in ("", _PORTS.get(scheme)) and (name[-1] == "]" or ":" not in name[start:]):
        authority = name
    if slashes and scheme in _PORTS and rest[:1] in ("", "?", "#", "{"):
        rest = f"/{rest}"
    host = _CAPITALS.sub(lambda found: found[0] if found[0][0] == "{" else found[0].lower(), authority[start:])
    return f"{scheme}{slashes}{authority}{rest}", f"{scheme}{slashes}{authority[:start]}{host}{rest}"


def _quoted(text: str, errors: str = "strict") -> str:
    return text.encode(errors=errors).decode("latin-1").translate(_quotes())


@cache
def _quotes() -> dict[int, str]:
    """Return a mapping from each byte that URIs cannot contain to its percent-encoding. Calling `quote` for each
    character would be slower."""
    return {byte: f"%{byte:02X}" for byte in range(256) if not re.match(rf"[{_LEGAL}{{}}]", chr(byte))}


def _unescaped(found: re.Match[str]) -> str:
    character = chr(int(found[0][1:], 16))
    return character if character in _UNRESERVED else found[0].upper()


def _parts(uri: str) -> tuple[str, str, str, str]:
    """Split ``uri`` into four parts: the scheme with its colon, the slashes, the host with user and port, and
    everything after the host.

    Missing parts are empty.
    """
    rest = _BEFORE_PATH.sub("", uri)
    return *uri.removesuffix(rest).partition("//"), rest


class UriTemplate:
    """The URI template of a resource, in which names in braces stand for values.

    - ``{name}`` stands for one segment: one or more characters except ``/``, ``?`` and ``#``.
    - ``{+name}``, or ``{name*}``, stands for one or more characters of any kind.
    - ``{?name,other}``, at the end, stands for query parameters in any order, each of which may be missing. If the
      template already contains a ``?``, write ``{&name,other}``. Parameters with other names are ignored. A URI that
      has a parameter twice doesn't match.

    A URI is matched in its normal form (`normal_uri`), but values keep their case. The text of each name is then
    percent-decoded once. The URI doesn't match if the decoded text

    - isn't UTF-8, or has a control character;
    - for ``{name}``: contains a slash or backslash, or is ``.`` or ``..``;
    - for others: begins with a slash or backslash, or has ``..`` between slashes or backslashes.

    A template must not be ambiguous, so that no URI matches it in two ways:

    - Between two names there is text with ``/``, ``?`` or ``#``. After a ``{name}``, it may also be another character
      that is percent-encoded in values, for example ``&`` or ``,``. The first such character ends the name.
    - At most one name is a ``{+name}``.

    The end of each name is then known before the rest of the URI is read, so the time to match is proportional to the
    length of the URI.

    Raises `ValueError` for an ambiguous template, a repeated name, and other expressions, which the error names.
    """

    def __init__(self, template: str) -> None:
        self.template = template
        normal = normal_uri(template)
        query = _QUERY.search(normal)
        mark = "" if query is None else query[1]
        text = normal if query is None else normal[: query.start()]
        self._query: tuple[str, ...] = () if query is None else tuple(query[2].split(","))
        if mark and (mark == "?") == ("?" in text):
            raise ValueError(f"{template}: write {{?name}} to begin the query, or {{&name}} if a ? comes before it")
        found = list(_EXPRESSION.finditer(text))
        literals = _EXPRESSION.split(text)[:: _EXPRESSION.groups + 1]
        if self.is_template("".join(literals)):
            raise ValueError(
                f"{template}: only {{name}}, {{+name}} and {{name*}} are supported, and {{?name,name}} at the end"
            )
        self.names: tuple[str, ...] = (*(match[2] for match in found), *self._query)
        if len(set(self.names)) != len(self.names):
            raise ValueError(f"{template} contains the same name twice")
        self._fits: dict[str, Callable[[str], bool]] = {}
        pattern = re.escape(literals[0])
        for match, literal, following in zip(found, literals[1:], [*found[1:], None], strict=False):
            is_path = bool(match[1] or match[3])
            if is_path and _is_path in self._fits.values():
                raise ValueError(f"{template} is ambiguous: only one of its names can contain slashes")
            others = f"/?#{mark}"
            if following is not None and _DELIMITERS.isdisjoint(literal):
                end = None if is_path else _RESERVED.search(literal)
                if end is None:
                    raise ValueError(
                        f"{template} is ambiguous: it is unclear where {{{match[2]}}} ends and {following[0]} begins. "
                        f"Put a slash between them, for example {text[: match.end()]}/{following[0]}."
                    )
                others += re.escape(end[0])
            anything = f"[^{mark}#]+" if mark else ".+"
            pattern += f"(?P<{match[2]}>{anything if is_path else f'[^{others}]+'}){re.escape(literal)}"
            self._fits[match[2]] = _is_path if is_path else _is_segment
        self._pattern = re.compile(f"{pattern}(?:{re.escape(mark)}([^#]*))?" if mark else pattern)

    @staticmethod
    def is_template(uri: str) -> bool:
        """Return whether ``uri`` contains names in braces."""
        return "{" in uri or "}" in uri

    def match(self, uri: str) -> dict[str, str] | None:
        """Match ``uri`` against the template, and return the template's values.

        Return the value of each name in the template, except for missing query parameters. Return `None` if ``uri``
        doesn't match.
        """
        encoded, lowered = _encoded(uri)
        match = self._pattern.fullmatch(lowered)
        if match is None:
            return None
        given = [(name, encoded[match.start(name) : match.end(name)]) for name in self._fits]
        query = match[match.re.groups] if self._query else None
        pairs = [pair.partition("=") for pair in (query or "").split("&")]
        given += [(name, text) for name, _, text in pairs if name in self._query]
        values: dict[str, str] = {}
        for name, text in given:
            if _MALFORMED.search(text):
                return None
            try:
                value = _ESCAPES.sub(lambda found: unhexlify(found[0].replace(b"%", b"")), text.encode()).decode()
            except UnicodeError:
                return None
            if name in values or _CONTROL.search(value) or not self._fits.get(name, _is_path)(value):
                return None
            values[name] = value
        return values


def _is_segment(text: str) -> bool:
    return text not in (".", "..") and not _SLASH.search(text)


def _is_path(text: str) -> bool:
    return not _SLASH.match(text) and ".." not in _SLASH.split(text)

"""Masking: replaces the secrets in messages before they are written to a recording.

In one recording, the same secret always gets the same mask, so that a `requestState` can be followed from its answer to
its retry. A mask reveals nothing about the secret, because its key is created for each recording and never stored.

A peer can send a message that is designed to be slow to search. Therefore each step takes linear time, and a text
longer than `LONGEST` isn't searched but masked whole. `re` tries a pattern at each character: an unbounded part of a
pattern can only begin at few characters, at the first one of a run, or after a word that the part can't contain.

Secrets are found by their forms, and by the names of members, parameters, headers, cookies, options and environment
variables. A name is split into words in any spelling: ``accessToken``, ``access_token``, ``Access-Token``,
``ACCESSTOKEN``.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, cast

import msgspec

_NAME_END: Final = 100
"""Number of characters at the end of a name that are searched."""
_WORD_OF_NAME: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")

_ANYWHERE: Final = frozenset(
    (
        *("pwd", "pwds", "pass", "psw", "pswd", "otp", "otps", "totp", "hotp", "psk", "jwt", "jwts", "jwe", "dpop"),
        "bearer",
        *("cookie", "cookies", "token", "tokens", "csrf", "xsrf", "cvv", "cvc", "ssn", "assertion", "mnemonic"),
    )
)
"""If one of these words occurs anywhere in a name, the name's value is secret."""
_AT_THE_END: Final = frozenset(("auth", "pin", "pins", "pw", "puk", "sid", "sess", "mfa", "verifier"))
"""If a name ends with one of these words, the name's value is secret. The words may occur elsewhere: ``auth_method``
and ``pin_count`` aren't secrets."""
_JOINED: Final = (
    *("authorization", "password", "passwd", "passphrase", "passcode", "secret", "credential", "requeststate"),
    *("apikey", "privatekey", "accesskey", "secretkey", "signingkey", "encryptionkey", "decryptionkey", "masterkey"),
    *("sharedkey", "accountkey", "sshkey", "authkey", "sessionkey", "servicekey", "deploykey", "licensekey", "hmackey"),
    *("appkey", "subscriptionkey", "consumerkey", "webhookkey", "rootkey", "adminkey", "storagekey", "keymaterial"),
    *("authcode", "authorizationcode", "devicecode", "recoverycode", "backupcode", "verificationcode", "securitycode"),
    *("accesscode", "logincode", "mfacode", "2facode", "smscode", "onetimecode", "pincode", "codeverifier"),
    *("sessionid", "sessid", "sessioncookie", "setcookie", "connectionstring", "connectionstr", "connstr"),
    *("sharedaccesssignature", "samlresponse", "seedphrase", "securityanswer", "cardnumber", "creditcard", "pgpass"),
    *("privkey", "productkey", "activationkey", "functionskey", "usercode", "passhash", "passwort", "kennwort"),
    "senha",
    *("contrasena", "motdepasse", "walletseed", "seedwords", "2fa"),
)
"""If one of these sequences of words occurs in a name, with or without separators, the name's value is secret."""
_GLUED: Final = ("token", "tokens", "cookie", "cookies", "pwd", "pass")
"""Endings of compound words, such as ``authtoken`` or ``dbpass``."""
_INNOCENT: Final = frozenset(
    ("compass", "bypass", "surpass", "trespass", "underpass", "overpass", "encompass", "multipass")
)
_OPEN_KEYS: Final = frozenset(("public", "primary", "foreign", "sort", "partition", "cache", "routing", "host"))
_PEOPLE: Final = ("secretary", "secretaries", "secretariat")
_ABOUT: Final = frozenset(
    (
        *("count", "counts", "length", "size", "limit", "limits", "budget", "rate", "usage", "used", "min", "max"),
        *("type", "types", "format", "policy", "rules", "strength", "method", "methods", "through", "fail", "failed"),
        *("endpoint", "endpoints", "servers", "url", "uri", "required", "enabled", "disabled", "supported", "allowed"),
        *("expires", "expiry", "expiration", "expired", "lifetime", "ttl", "age", "at", "in", "consent", "banner"),
        *("per", "second", "minute", "hour", "day", "ratio", "percent", "cost", "price", "index", "left", "remaining"),
    )
)
"""Last words of names that describe a secret but don't contain it, such as ``token_count`` and
``passwordExpiresAt``."""
_QUANTITIES: Final = frozenset(
    (
        *("max", "min", "total", "num", "n", "input", "output", "prompt", "completion", "cached", "reasoning"),
        *("thinking", "used", "remaining", "available", "estimated", "context", "audio", "text", "sampled"),
    )
)
"""Words before ``tokens`` in a name for a count of tokens."""


def words_of_name(name: str) -> list[str]:
    """Split a name, such as ``apiKey`` or ``API_KEY``, into its words in lower case."""
    return [word.lower() for word in _WORD_OF_NAME.findall(name[-_NAME_END:])]


def is_count(name: str) -> bool:
    """Return whether ``name`` ends in the word ``tokens``, such as ``max_tokens``. A number with such a name is a
    count, and not a secret."""
    return words_of_name(name)[-1:] == ["tokens"]


def names_secret(name: str) -> bool:
    """Return whether a value with this ``name`` is probably a secret."""
    # Truncate the name, because names are cached and a peer can send long names.
    return _names_secret(name[-_NAME_END:])


@lru_cache(1000)
def _names_secret(name: str) -> bool:
    words = words_of_name(name)
    if not words or words[-1] in _ABOUT or words == ["progress", "token"]:
        return False
    if "tokens" in words and not _QUANTITIES.isdisjoint(words):
        return False
    if name.isupper() and words[-1] == "key" and words[:-1] and words[-2] not in _OPEN_KEYS:
        return True  # an environment variable: OPENAI_KEY
    joined = "".join(words)
    for each in _PEOPLE:
        joined = joined.replace(each, "")
    return (
        words[-1] in _AT_THE_END
        or not _ANYWHERE.isdisjoint(words)
        or any(each in joined for each in _JOINED)
        or (words[-1].endswith(_GLUED) and words[-1] not in _INNOCENT)
    )


MASK: Final = "masked:"
"""The prefix of every mask."""
_MASKED: Final = re.compile(f"{MASK}[0-9a-f]{{10}}")
Mask = Callable[[str], str]
"""A function that returns the mask of a secret."""

_PRIVATE_KEY: Final = re.compile(
    r"----[ -]BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?[ -]----.*?(?:----[ -]END [A-Z0-9 ]{0,50}[ -]----|\Z)",
    re.DOTALL,
)
"""A private key (RFC 7468). Headers can come before the key (RFC 1421). Without an end line, the rest of the text is
the key."""
_URL: Final = re.compile(r"""://[^\s"<>`]++""")
_AUTHORITY: Final = re.compile(r"[^/?#]*+")
_WITH_PASSWORD: Final = re.compile(r"[^:\[\]]*+:(?!\d{0,5}+\Z)")
"""Matches the authority of a URL if it doesn't end in a port. The rest of the password then contains unencoded special
characters."""
_FORMS: Final = re.compile(
    r"""
    (?P<scheme>\b(?:bearer|dpop|negotiate|ntlm)[ \t]{1,8}+)[A-Za-z0-9._~+/=-]{8,}+   # RFC 9110 section 11
    | (?P<basic>\bbasic[ \t]{1,8}+)(?=[a-z0-9+/]{0,100}(?-i:[A-Z0-9=+/]))[A-Za-z0-9+/=_-]{8,}+   # no English word
    | (?P<before>(?<![A-Za-z0-9_-])(?>[A-Za-z0-9_-]*?(?=eyJ)))(?-i:eyJ)[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]*+
      \.[A-Za-z0-9_-]*+(?:\.[A-Za-z0-9_-]*+){0,2}   # RFC 7519: a token with claims, signed or encrypted
    | \b(?:gh[pousr]_|github_pat_|glpat-|xox[abeprs]-|xapp-|[sr]k_(?:live|test)_|whsec_|sk-|hf_|npm_|pypi-|dckr_pat_
      |shpat_|lin_api_|AIza|ya29\.|SG\.)(?=[A-Za-z_-]{0,40}[0-9])[A-Za-z0-9._-]{16,}+   # tokens of services
    | \b(?:AKIA|ASIA)[A-Z0-9]{16}\b
    """,
    re.IGNORECASE | re.VERBOSE,
)
_NAMED: Final = re.compile(
    r"""
    <(?P<tag>[\w.:-]{1,100}+)(?:\s[^<>]{0,200}+)?>
    | (?<![\w.-])(?:
        (?i:name|key|variable)\\{0,7}+["']?+[ \t]{0,20}+[:=][ \t]{0,20}+\\{0,7}+["']?+(?P<named>[\w.-]{1,100}+)
            [\\"',\s]{0,60}+(?i:value)\\{0,7}+["']?+[ \t]{0,20}+[:=][ \t]{0,20}+
        | (?P<option>--[A-Za-z0-9][\w.-]{0,60}+)[ \t]{1,4}+(?=[^\s=:-])
        | (?P<name>[\w.-]{1,100}+)(?:\\{0,7}+["'`])?+\]?+[ \t]{0,20}+(?P<sign>:=|=>|[:=](?![:=]))[ \t]{0,20}+
    )
    """,
    re.ASCII | re.VERBOSE,
)
"""A name and the sign before its value: ``x=…``, ``"x": …``, ``--x …``, ``<x>…``, ``name: x, value: …``."""
_IN_QUERIES: Final = ("code", "sig", "signature", "auth")
"""Endings of names that are secret in the query of a URL."""
_QUOTED: Final = re.compile(r"""[bruBRU]{0,2}(\\{0,7}+["'`])(?P<value>(?:(?!\1)(?:\\.|[^\\\r\n]))++)""")
_IN_TAG: Final = re.compile(r"(?P<value>[^<]++)")
_IN_QUERY: Final = re.compile(r"""(?P<value>[^\s&#;"'<>]++)""")
_IN_LIST: Final = re.compile(r"""(?P<value>[^\s;"'<>]++)""")
_VALUE: Final = re.compile(r"""(?P<value>[^\s"'<>]++)""")
_COOKIE: Final = r"""[^\s=;,"']++(?:=(?:"[^"\r\n]*+"|[^\s;"']*+))?+"""
_COOKIES: Final = re.compile(rf"(?P<value>{_COOKIE}(?:;[ \t]{{0,4}}+{_COOKIE})*+)")
_TO_THE_END: Final = re.compile(r"(?P<value>[^\r\n]++)")
_CREDENTIALS: Final = re.compile(r"""(?P<value>(?:[A-Za-z][A-Za-z0-9-]{0,20}+[ \t]{1,4}+)?+[^\s"'<>]++)""")
_LINE: Final = re.compile(r"(?P<value>(?:[^\s]|[^\S\r\n](?![ \t]{0,8}+[\w.-]{1,60}+=))++)")
_WORD: Final = re.compile(
    r"""
    (?!//|:)(?P<value>(?:[)\]},;]{0,20}+[^\s"'<>)\]},;]++)++)(?P<punctuation>[)\]},;]*+)
    (?P<last>[ \t]{0,8}+(?![^\s"'<>]))?
    """,
    re.VERBOSE,
)
_BEGINNING: Final = re.compile(r"[ \t>*$-]{0,8}+(?:(?:export|set|setx|declare -x|env|ENV)[ \t]{1,4}+)?+")
"""Signs and words before the first name of a line."""
_NO_VALUES: Final = frozenset(
    (
        *("none", "null", "nil", "true", "false", "str", "string", "int", "integer", "number", "bool", "boolean"),
        *("bytes", "optional", "required", "any", "object", "array", "list", "dict", "undefined", "secretstr", "yes"),
        *("no", "unset", "empty"),
    )
)
"""Words after a name that aren't secrets, such as a type."""


def without_secrets(text: str, mask: Mask) -> str:
    """Return ``text`` with all secrets masked."""
    text = _PRIVATE_KEY.sub(lambda found: mask(found[0]), text)
    text = _URL.sub(lambda found: _without_user(found[0], mask), text)
    text = _FORMS.sub(lambda found: _without_token(found, mask), text)
    return _without_values(text, mask)


def _without_token(found: re.Match[str], mask: Mask) -> str:
    before = found["scheme"] or found["basic"] or found["before"] or ""
    return before + mask(found[0][len(before) :])


def _without_user(url: str, mask: Mask) -> str:
    """Return ``url``, which starts at its ``://``, with the userinfo masked (RFC 3986 section 3.2.1).

    Userinfo with a password is masked up to the last @ of ``url``, because passwords are often written without
    encoding.
    """
    last = url.rfind("@")
    begin = 0
    while 0 <= begin < last:
        begin += len("://")
        authority = _AUTHORITY.match(url, begin)
        assert authority is not None, "it may be empty"
        found = _WITH_PASSWORD.match(authority[0])
        end = last if found is not None else url.rfind("@", begin, authority.end())
        if end > begin:
            return url[:begin] + mask(url[begin:end]) + url[end:]
        begin = url.find("://", begin)
    return url


def _without_values(text: str, mask: Mask) -> str:
    parts: list[str] = []
    done = position = 0
    while (found := _NAMED.search(text, position)) is not None:
        position = found.end()
        value = _value_behind(found, text)
        if value is not None:
            begin, end = value.span("value")
            parts += text[done:begin], mask(text[begin:end])
            done = position = end
    return "".join((*parts, text[done:]))


def _value_behind(found: re.Match[str], text: str) -> re.Match[str] | None:
    """Find the value that follows a name in ``text``. Return its match, or `None` if the value isn't a secret."""
    begin, position = found.start(), found.end()
    name = found["tag"] or found["named"] or found["option"] or found["name"]
    before = text[begin - 1 : begin] if begin and found["sign"] == "=" else ""
    in_query = before in ("?", "&", "#", ";") and name.lower().endswith(_IN_QUERIES)
    if not (in_query or names_secret(name)):
        return None
    if _MASKED.match(text, position - len(MASK)):
        return None  # the value was already masked
    if before not in ("?", "&", "#") and not found["tag"]:
        quoted = _QUOTED.match(text, position)
        if quoted is not None:
            return quoted
    value = _kind_of(found, name.lower(), text, before).match(text, position)
    if value is None or _MASKED.fullmatch(value["value"]):
        return None
    words = value["value"].strip("()[]{},;:")
    if words.lower() in _NO_VALUES or (words.isdecimal() and is_count(name)) or (in_query and len(words) < 4):
        return None
    return None if value.re is _WORD and found["sign"] == ":" and _is_prose(value) else value


def _is_prose(value: re.Match[str]) -> bool:
    """Return whether a value begins a sentence and isn't a secret, as in ``password: The password of the user``."""
    return value["value"].isalpha() and not value["punctuation"] and value["last"] is None


def _kind_of(found: re.Match[str], name: str, text: str, before: str) -> re.Pattern[str]:
    """Return the pattern that finds the end of the secret value of ``name``. It depends on the characters around the
    name."""
    if found["tag"]:
        return _IN_TAG
    if before in ("?", "&", "#"):
        return _IN_QUERY
    if name.endswith(("cookie", "cookies")):
        return _COOKIES
    begins_line = _begins_line(text, found.start())
    if name.endswith(("authorization", "auth")):
        return _TO_THE_END if begins_line else _CREDENTIALS
    if begins_line and (found["name"] or "").isupper() and found["sign"] == ":":
        return _TO_THE_END  # environment variables in YAML
    if found["sign"] == "=":
        return _IN_LIST if before == ";" else _LINE if begins_line else _VALUE
    return _WORD


def _begins_line(text: str, index: int) -> bool:
    """Return whether only indentation and similar characters are before the name at ``index`` on its line."""
    nearby = text[max(0, index - 30) : index]
    begin = max(nearby.rfind("\n"), nearby.rfind("\r"))
    return (begin >= 0 or index <= 30) and _BEGINNING.fullmatch(nearby[begin + 1 :]) is not None


LONGEST: Final = 256 * 1024
"""Maximum number of characters of a text that is searched for secrets. A search can't be interrupted, and blocks every
thread."""

_NAMES: Final = frozenset(("name", "key", "header", "variable", "env"))
_VALUES: Final = frozenset(("value", "values", "default", "defaultvalue", "currentvalue"))
"""Members whose value is named by another member of the same object: ``{"name": "API_KEY", "value": "…"}``."""
_OF_SCHEMAS: Final = frozenset(
    (
        *("type", "title", "description", "format", "pattern", "minLength", "maxLength", "minimum", "maximum", "items"),
        *("minItems", "maxItems", "uniqueItems", "anyOf", "oneOf", "allOf", "not", "$ref", "$comment", "required"),
        *("additionalProperties", "properties", "readOnly", "writeOnly", "deprecated", "nullable", "contentEncoding"),
        *("contentMediaType", "x-mcp-header"),
    )
)
"""Keywords of a secret's schema that don't contain a value of the secret."""
_JSON: Final = re.compile(r"[ \t\r\n]*+[\[{]")
_HINTS: Final = re.compile("[:=@]|eyJ|_|-|AKIA|ASIA|(?i:bearer|basic|dpop|negotiate|ntlm) |<")
"""Characters that most texts without a secret lack. Searching for these characters is faster than searching for
secrets."""
_any: Final = msgspec.json.Decoder()


class Masking:
    """Masks the secrets in the messages of one recording."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(16)

    def masked(self, data: Any) -> Any:
        """Return a copy of JSON ``data`` with all secrets masked. Raises `RecursionError` if it is nested too deeply.

        Secrets are values whose name matches `names_secret`, in data and in texts; credentials after an HTTP scheme;
        users in URLs; private keys; and tokens with a known form. JSON in a text is searched as JSON. The schema of a
        property that is named like a secret stays."""
        if isinstance(data, dict):
            return self._members(cast("dict[str, Any]", data))
        if isinstance(data, list):
            return self._items(cast("list[Any]", data))
        return self._text(data) if isinstance(data, str) else data

    def _members(self, members: dict[str, Any]) -> dict[str, Any]:
        named = members.get("isSecret") is True or any(
            isinstance(value, str) and key.lower() in _NAMES and names_secret(value) for key, value in members.items()
        )
        return {
            self._text(key): self._hidden(value) if named and key.lower() in _VALUES else self._member(key, value)
            for key, value in members.items()
        }

    def _member(self, key: str, value: Any) -> Any:
        if key == "properties" and isinstance(value, dict):
            members = cast("dict[str, Any]", value)
            # If all members are objects, treat them as the properties of a JSON Schema.
            if all(isinstance(each, dict) for each in members.values()):
                return {self._text(name): self._schema(name, each) for name, each in members.items()}
        if not names_secret(key) or (isinstance(value, int | float) and is_count(key)):
            return self.masked(value)
        return self._hidden(value)

    def _schema(self, name: str, schema: dict[str, Any]) -> dict[str, Any]:
        """Return the JSON Schema of the property ``name``. If the name suggests a secret, mask values such as the
        default in the schema."""
        if not names_secret(name):
            return self._members(schema)
        return {
            self._text(key): self._member(key, value) if key in _OF_SCHEMAS else self._hidden(value)
            for key, value in schema.items()
        }

    def _items(self, items: list[Any]) -> list[Any]:
        if items and all(_is_pair(each) for each in items):  # for example headers
            return [[self._text(name), self._member(name, value)] for name, value in items]
        masked = [self.masked(each) for each in items]
        for index, (option, value) in enumerate(pairwise(items), 1):
            if isinstance(option, str) and option.startswith("-") and "=" not in option and names_secret(option):
                masked[index] = self._hidden(value)  # arguments of a command
        return masked

    def _text(self, text: str) -> str:
        if len(text) > LONGEST:
            return self._whole(text)
        if not _HINTS.search(text):
            return text
        if _JSON.match(text):
            try:
                data = _any.decode(text)
                masked = self.masked(data)
                if masked != data:
                    return msgspec.json.encode(masked).decode()
            except (msgspec.MsgspecError, UnicodeError):
                pass  # the text looks like JSON, but isn't
            except RecursionError:
                return self._whole(text)
        return without_secrets(text, self._mask)

    def _whole(self, text: str) -> str:
        """Return a mask that replaces a whole text, because the text is too long to be searched for secrets."""
        return f"{self._mask(text)} ({len(text)} characters)"

    def _hidden(self, value: Any) -> Any:
        if value is None or isinstance(value, bool):
            return value
        return self._mask(value if isinstance(value, str) else repr(value))

    def _mask(self, text: str) -> str:
        return MASK + hashlib.blake2b(text.encode("utf-8", "replace"), key=self._key, digest_size=5).hexdigest()


def _is_pair(item: Any) -> bool:
    return isinstance(item, list) and len(cast("list[Any]", item)) == 2 and isinstance(item[0], str)

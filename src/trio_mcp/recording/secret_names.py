"""Names that secrets have: of members, parameters, headers, cookies, options and environment variables.

A name is split into words in any spelling: ``accessToken``, ``access_token``, ``Access-Token``, ``ACCESSTOKEN``.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

_LONGEST: Final = 100
"""Number of characters at the end of a name that are searched."""
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")

_ANYWHERE: Final = frozenset(
    (
        *(
            "pwd",
            "pwds",
            "pass",
            "psw",
            "pswd",
            "otp",
            "otps",
            "totp",
            "hotp",
            "psk",
            "jwt",
            "jwts",
            "jwe",
            "dpop",
            "bearer",
        ),
        *("cookie", "cookies", "token", "tokens", "csrf", "xsrf", "cvv", "cvc", "ssn", "assertion", "mnemonic"),
    )
)
"""Words that make a name secret, at any position."""
_AT_THE_END: Final = frozenset(("auth", "pin", "pins", "pw", "puk", "sid", "sess", "mfa", "verifier"))
"""Words that make a name secret at its end: ``auth_method`` and ``pin_count`` aren't secrets."""
_JOINED: Final = (
    *("authorization", "password", "passwd", "passphrase", "passcode", "secret", "credential", "requeststate"),
    *("apikey", "privatekey", "accesskey", "secretkey", "signingkey", "encryptionkey", "decryptionkey", "masterkey"),
    *("sharedkey", "accountkey", "sshkey", "authkey", "sessionkey", "servicekey", "deploykey", "licensekey", "hmackey"),
    *("appkey", "subscriptionkey", "consumerkey", "webhookkey", "rootkey", "adminkey", "storagekey", "keymaterial"),
    *("authcode", "authorizationcode", "devicecode", "recoverycode", "backupcode", "verificationcode", "securitycode"),
    *("accesscode", "logincode", "mfacode", "2facode", "smscode", "onetimecode", "pincode", "codeverifier"),
    *("sessionid", "sessid", "sessioncookie", "setcookie", "connectionstring", "connectionstr", "connstr"),
    *("sharedaccesssignature", "samlresponse", "seedphrase", "securityanswer", "cardnumber", "creditcard", "pgpass"),
    *(
        "privkey",
        "productkey",
        "activationkey",
        "functionskey",
        "usercode",
        "passhash",
        "passwort",
        "kennwort",
        "senha",
    ),
    *("contrasena", "motdepasse", "walletseed", "seedwords", "2fa"),
)
"""Joined words that make a name secret, at any position, with or without separators in the name."""
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
"""Last words of names that describe a secret: ``token_count`` and ``passwordExpiresAt`` aren't secrets."""
_QUANTITIES: Final = frozenset(
    (
        *("max", "min", "total", "num", "n", "input", "output", "prompt", "completion", "cached", "reasoning"),
        *("thinking", "used", "remaining", "available", "estimated", "context", "audio", "text", "sampled"),
    )
)
"""Words before ``tokens`` in a name for a count of tokens."""


def words_of_name(name: str) -> list[str]:
    """Return the words of a name, in lower case."""
    return [word.lower() for word in _WORD.findall(name[-_LONGEST:])]


def is_count(name: str) -> bool:
    """Return whether a number with this name counts tokens: whether the name ends in ``tokens``."""
    return words_of_name(name)[-1:] == ["tokens"]


def names_secret(name: str) -> bool:
    """Return whether the value under ``name`` is taken for a secret, by its name alone."""
    return _names_secret(name[-_LONGEST:])  # a peer may choose long names, and the cache keeps them


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

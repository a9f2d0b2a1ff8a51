"""Secret files: `why_secret` recognises files that hold keys, passwords, tokens or client messages, by their name and
content.
"""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import PurePosixPath
from typing import Final

_CODE: Final = frozenset(
    (
        *(".py", ".pyi", ".pyx", ".ipynb", ".js", ".mjs", ".cjs", ".ts", ".jsx", ".tsx", ".html", ".htm", ".css"),
        *(".c", ".h", ".cc", ".cpp", ".hpp", ".rs", ".go", ".java", ".rb", ".so", ".dylib", ".dll", ".wasm", ".sh"),
        *(".md", ".rst", ".svg", ".png", ".jpg", ".jpeg", ".gif", ".webp", ".ico", ".woff", ".woff2", ".ttf", ".pdf"),
    )
)
"""Suffixes of code, documents and images, which may be named after secrets without holding any."""
_CODE_WITH_SECRETS: Final = frozenset(
    ("secrets.py", "secret.py", "local_settings.py", "secrets.js", "secrets.ts", "secrets.h", "wp-config.php")
)
_NAMES: Final = (
    # variables, and the settings of tools
    *("*.env", "*.env.*", "env.prod*", "secrets.*", "secret.*", "settings.local.*"),
    *("*.tfstate", "*.tfstate.*", "*.tfvars", "*.tfvars.json", "*.ovpn", "netrc", "_netrc", "pgpass", "pgpass.conf"),
    *("htpasswd", "shadow", "passwd", "kubeconfig*", "*.kubeconfig", "rootkey.csv", "my.cnf"),
    *("claude_desktop_config.json*", "mcp_config.json*", "mcp.json*", "appsettings.*.json", "*.publishsettings"),
    # keys and keystores
    *("id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "*_rsa", "*_dsa", "*_ecdsa", "*_ed25519", "ssh_host_*_key"),
    *("*.p12", "*.pfx", "*.p8", "*.pkcs8", "*.pkcs12", "*.keystore", "*.jks", "*.jceks", "*.bks", "*.bcfks", "*.ppk"),
    *("*.keytab", "krb5cc*", "*.kdb", "*.kdbx", "*.psafe3", "*.agilekeychain", "*.1pux", "*.keychain*", "*.gnupg"),
    *("*.gpg", "*.pgp", "*.age", "secring.*", "master.key", "*.pk8", "*.snk", "*.mobileprovision"),
    # cloud accounts
    *("client_secret*", "service-account*", "service_account*", "serviceaccount*", "*firebase-adminsdk*"),
    *("*accesskeys*.csv", "application_default_credentials*", "legacy_credentials*", "*.boto"),
    # recorded traffic
    *("*.har", "*.pcap", "*.pcapng", "cookies.*", "cookies", "*.cookies", "*.sqlite-wal", "*.db-wal", "*-journal"),
)
_WORDS: Final = frozenset(
    (
        *("secret", "secrets", "password", "passwords", "passwd", "passphrase", "pwd", "credential", "credentials"),
        *("creds", "cred", "token", "tokens", "apikey", "apikeys", "oauth", "auth", "cookie", "cookies", "privkey"),
        *("privatekey", "private", "login", "logins"),
    )
)
_KEYS: Final = frozenset(("key", "keys", "keyfile", "keypair", "jwk"))
_PUBLIC: Final = frozenset(("public", "pub", "example", "sample", "template", "schema"))
_WORD: Final = re.compile(r"[a-z]+|[A-Z]+(?![a-z])|[A-Z][a-z]+")
_PEM_NAMES: Final = ("*.pem", "*.key", "*.crt", "*.cer", "*.der")

_PEM: Final = re.compile(
    # Line ends may be escaped as in JSON, and lines may be indented. Headers may come before the key.
    rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?:[\s\"'+,>|]|\\[rnt])*+"
    rb"(?:[A-Z][A-Za-z-]{1,30}+:[^\n\\]{0,100}+(?:\s|\\[rnt])*+){0,4}+[A-Za-z0-9+/=]{16}"
)
_OTHER_KEYS: Final = re.compile(
    rb"PuTTY-User-Key-File-[0-9]: |AGE-SECRET-KEY-1[A-Z0-9]{20}|untrusted comment: [a-z ]{0,20}secret key"
    rb"|^\s{0,100}PrivateKey\s{0,20}=\s{0,20}[A-Za-z0-9+/]{42}",
    re.MULTILINE,
)
_PKCS8: Final = re.compile(rb"0\x82..\x02\x01\x00(?:0.{1,30}\x06.{1,15}\x04|\x02\x82)", re.DOTALL)
"""Beginning of a private key in DER: PKCS #8, or RSA only (PKCS #1)."""
_JWK: Final = re.compile(rb"\"(?:d|k)\\?\"\s{0,20}:\s{0,20}\\?\"[A-Za-z0-9_-]{20}")
_OF_TOKENS: Final = re.compile(rb"\"(?:refresh_token|access_token|client_secret|id_token)\"\s{0,20}:\s{0,20}\"[^\"\s]")
_RECORDING: Final = re.compile(rb"(?:\xef\xbb\xbf)?\s{0,20}\{\s{0,20}\"recording\"\s{0,20}:\s{0,20}[0-9]")
_SQLITE: Final = b"SQLite format 3\0"
_SQLITE_LOGS: Final = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83", b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7")
_MARK: Final = slice(68, 72)
"""Position of the application id in a SQLite file."""
_UTF16: Final = (b"\xff\xfe", b"\xfe\xff")


def why_secret(path: str, data: bytes) -> str | None:
    """Return why a file looks like a secret, or `None`. ``path`` is relative, with slashes."""
    if data.startswith(_UTF16):
        data = data.replace(b"\0", b"")
    return _by_name(PurePosixPath(path), data) or _by_content(data)


def _by_name(path: PurePosixPath, data: bytes) -> str | None:
    name = path.name.lower()
    is_code = path.suffix.lower() in _CODE
    if name in _CODE_WITH_SECRETS or (not is_code and any(fnmatch(name, pattern) for pattern in _NAMES)):
        return "by its name"
    if any(fnmatch(name, pattern) for pattern in _PEM_NAMES) and b"PRIVATE KEY-----" in data:
        return "a private key"
    if is_code:
        return None
    words = [word.lower() for word in _WORD.findall(path.stem)]
    named = _WORDS.intersection(words) or _KEYS.intersection(words[-1:]) or _WORDS.intersection(path.parts[:-1])
    return "by its name" if named and not _PUBLIC.intersection(words) else None


def _by_content(data: bytes) -> str | None:
    if _PEM.search(data) or _OTHER_KEYS.search(data) or _PKCS8.match(data):
        return "a private key"
    if b'"kty' in data and _JWK.search(data):
        return "a private key"
    if _RECORDING.match(data):
        return "a recording"
    if data.startswith(_SQLITE_LOGS):
        return "the log of a database that is in use"
    if data.startswith(_SQLITE) and _is_ours(data):
        return "a task or session store"
    return "tokens" if data.lstrip()[:1] in (b"{", b"[") and _OF_TOKENS.search(data) else None


def _is_ours(data: bytes) -> bool:
    from ..fleet.storage.sqlite.storage import SHARED
    from ..stores.sqlite_database import TASKS

    return int.from_bytes(data[_MARK]) in (TASKS.application, SHARED.application)

"""Packs MCP bundles: archives with the files of a server, which MCP hosts install
(github.com/modelcontextprotocol/mcpb). The same files always give the same bytes. `why_secret` recognizes files that
contain keys, passwords, tokens or client messages."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import stat
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any, Final

from ..classes import frozen
from .printable import CommandError, name_shown

MANIFEST: Final = "manifest.json"
ENTRY: Final = "trio_mcp_entry.py"
"""Name of the file in a bundle that hosts start."""

_NEVER: Final = ("__pycache__", "node_modules", "*.pyc", "*.mcpb")
_MOST_FILES: Final = 20_000
_MOST_BYTES: Final = 256 * 1024 * 1024
_MOST_NAMED: Final = 20
"""Maximum number of files that one error message lists."""
_OLDEST: Final = (1980, 1, 1, 0, 0, 0)
"""The modification time of every file in a bundle: the earliest that archives can represent."""


@frozen
class BundledFiles:
    """The files of a folder that are packed into a bundle, keyed by their names in the bundle.

    ``left_out`` contains the paths of files and folders that aren't packed. The path of a folder ends with a slash.
    """

    files: Mapping[str, Path]
    left_out: Sequence[str]


def files_of(folder: Path, output: Path, exclude: Sequence[str], include: Sequence[str] = ()) -> BundledFiles:
    """Select the files of ``folder`` that should be packed into a bundle.

    Leaves out hidden files, environments, caches, the folder ``output``, and files whose name or path matches a pattern
    of ``exclude``. A bundle may be published, so this raises `CommandError` for:

    - files that look like secrets and aren't in ``include``
    - links that leave the folder or lead to folders
    - paths that aren't files or can't be read
    - too many files or bytes
    """
    root, left_out, secrets = _resolved(folder), list[str](), dict[str, str]()
    files, size = dict[str, Path](), 0
    try:
        for path, name in _walk(root, _resolved(output), exclude, left_out):
            if not path.is_file():
                raise CommandError(f"{name} is not a file: {_MEND}")
            real = _resolved(path)
            if not real.is_relative_to(root):
                raise CommandError(f"{name} is a symbolic link to a file outside of the folder: {_MEND}")
            place = real.relative_to(root).as_posix()
            if any(_is_left_out(part, place, exclude) for part in real.relative_to(root).parts):
                raise CommandError(
                    f"{name} is a symbolic link to {place}, but {place} is left out of the bundle: {_MEND}"
                )
            size += path.stat().st_size
            if len(files) == _MOST_FILES or size > _MOST_BYTES:
                raise CommandError(
                    f"{folder} has more than {_MOST_FILES} files or {_MOST_BYTES} bytes: choose a folder with --folder"
                )
            files[name] = path
            if name not in include and (why := why_secret(place, _content(path)) or why_secret(name, b"")):
                secrets[name] = why
        if secrets:
            published = _published(files)
            secrets = {name: why for name, why in secrets.items() if name not in published}
    except OSError as error:
        raise CommandError(f"{error.filename} cannot be read: {error.strerror}; {_MEND}") from None
    if secrets:
        named = [f"{name} looks like a secret ({why})" for name, why in sorted(secrets.items())[:_MOST_NAMED]]
        named += [f"so do {len(secrets) - _MOST_NAMED} more"] if len(secrets) > _MOST_NAMED else []
        raise CommandError(
            f"{'; '.join(named)}. Anyone may open a bundle: {_MEND}. If a file holds no secret, pass its path to "
            "--include"
        )
    for name in (MANIFEST, ENTRY):
        if name in files:
            raise CommandError(f"{name} is a file that pack itself writes into the bundle: {_MEND}")
    return BundledFiles(dict(sorted(files.items())), sorted(left_out))


_MEND: Final = "move it elsewhere, or leave it out with --exclude"


def _published(files: Mapping[str, Path]) -> set[str]:
    """Return the names of the files that belong to installed packages, according to pip's lists. Such files are public,
    so they contain no secrets."""
    names = set[str]()
    for name, path in files.items():
        if fnmatch(name, "*.dist-info/RECORD"):
            place = PurePosixPath(name).parent.parent
            lines = _content(path).decode(errors="replace").splitlines()
            names |= {str(place / row[0]) for row in csv.reader(lines) if row and ".." not in row[0]}
    return names


def _resolved(path: Path) -> Path:
    """Return the real path of ``path``. A loop of symbolic links raises no exception, unlike in `Path.resolve`."""
    return Path(os.path.realpath(path))


def _content(path: Path) -> bytes:
    """Return the bytes of the file at ``path``. Raises `CommandError` if the file is too large, even if the file grows
    while it is read."""
    with path.open("rb") as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise CommandError(f"{path} has more than {_MOST_BYTES} bytes: {_MEND}")
    return data


def _walk(root: Path, output: Path, exclude: Sequence[str], left_out: list[str]) -> Iterator[tuple[Path, str]]:
    def fail(error: OSError) -> None:
        raise error

    for folder, folders, names in os.walk(root, onerror=fail):
        here = Path(folder)
        kept: list[str] = []
        for name in folders:
            path = here / name
            inside = path.relative_to(root).as_posix()
            if _is_left_out(name, inside, exclude) or path == output or (path / "pyvenv.cfg").exists():
                left_out.append(f"{inside}/")
            elif path.is_symlink():
                raise CommandError(f"{inside} is a symbolic link to a folder: {_MEND}")
            else:
                kept.append(name)
        folders[:] = kept
        for name in names:
            path = here / name
            inside = path.relative_to(root).as_posix()
            # Leave out the files that an earlier run of ``trio-mcp pack`` has written.
            if _is_left_out(name, inside, exclude) or inside == "server.json":
                left_out.append(inside)
            else:
                yield path, inside


def _is_left_out(name: str, inside: str, exclude: Sequence[str]) -> bool:
    if name.startswith("."):
        return True
    return any(fnmatch(each, pattern) for pattern in (*_NEVER, *exclude) for each in (name, inside))


def entry_file(file: str, name: str) -> str:
    """Return the source code of the bundle's start script (`ENTRY`). The script serves the server in the Python file
    ``file`` of the bundle.

    If the file has several servers, ``name`` is the variable that contains the server to serve.
    """
    suffix = f":{name}" if name else ""
    return f'''"""Serves over standard input and output, as `trio-mcp run` does."""

import sys
from pathlib import Path

from trio_mcp.cli.main import main

sys.argv[:] = ["trio-mcp", "run", str(Path(__file__).parent / {file!r}) + {suffix!r}]
main()
'''


def written(document: Mapping[str, Any]) -> bytes:
    """Return ``document`` as indented JSON in UTF-8."""
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()


def zipped(files: Mapping[str, Path], made: Mapping[str, bytes]) -> bytes:
    """Return a ZIP archive whose entries are sorted by name. It contains ``files``, which are read from their paths,
    and ``made``, whose contents are given.

    The archive has no times and owners, so that the same files give the same bytes. Executable files stay executable.
    Raises `OSError` if a file can't be read.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in sorted({*files, *made}):
            path = files.get(name)
            info = zipfile.ZipInfo(_encodable(name), _OLDEST)
            info.create_system, info.compress_type = 3, zipfile.ZIP_DEFLATED
            runs = path is not None and path.stat().st_mode & stat.S_IXUSR
            info.external_attr = (stat.S_IFREG | (0o755 if runs else 0o644)) << 16
            archive.writestr(info, made[name] if path is None else _content(path))
    return buffer.getvalue()


def _encodable(name: str) -> str:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise CommandError(f"{name_shown(name)} is not a valid UTF-8 name: {_MEND}") from None
    return name


_CODE: Final = frozenset(
    (
        *(".py", ".pyi", ".pyx", ".ipynb", ".js", ".mjs", ".cjs", ".ts", ".jsx", ".tsx", ".html", ".htm", ".css"),
        *(".c", ".h", ".cc", ".cpp", ".hpp", ".rs", ".go", ".java", ".rb", ".so", ".dylib", ".dll", ".wasm", ".sh"),
        *(".md", ".rst", ".svg", ".png", ".jpg", ".jpeg", ".gif", ".webp", ".ico", ".woff", ".woff2", ".ttf", ".pdf"),
    )
)
"""Suffixes of code, documents and images. Their names may contain words like "secret" although the file isn't one."""
_CODE_WITH_SECRETS: Final = frozenset(
    ("secrets.py", "secret.py", "local_settings.py", "secrets.js", "secrets.ts", "secrets.h", "wp-config.php")
)
_NAMES: Final = (
    # The following names belong to files with environment variables, or with settings that may contain secrets.
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
    # The text of a private key may have escaped line ends (as in JSON), indented lines, and headers.
    rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?:[\s\"'+,>|]|\\[rnt])*+"
    rb"(?:[A-Z][A-Za-z-]{1,30}+:[^\n\\]{0,100}+(?:\s|\\[rnt])*+){0,4}+[A-Za-z0-9+/=]{16}"
)
_OTHER_KEYS: Final = re.compile(
    rb"PuTTY-User-Key-File-[0-9]: |AGE-SECRET-KEY-1[A-Z0-9]{20}|untrusted comment: [a-z ]{0,20}secret key"
    rb"|^\s{0,100}PrivateKey\s{0,20}=\s{0,20}[A-Za-z0-9+/]{42}",
    re.MULTILINE,
)
_PKCS8: Final = re.compile(rb"0\x82..\x02\x01\x00(?:0.{1,30}\x06.{1,15}\x04|\x02\x82)", re.DOTALL)
"""First bytes of a private key in DER: PKCS #8, or RSA only (PKCS #1)."""
_JWK: Final = re.compile(rb"\"(?:d|k)\\?\"\s{0,20}:\s{0,20}\\?\"[A-Za-z0-9_-]{20}")
_OF_TOKENS: Final = re.compile(rb"\"(?:refresh_token|access_token|client_secret|id_token)\"\s{0,20}:\s{0,20}\"[^\"\s]")
_RECORDING: Final = re.compile(rb"(?:\xef\xbb\xbf)?\s{0,20}\{\s{0,20}\"recording\"\s{0,20}:\s{0,20}[0-9]")
_SQLITE: Final = b"SQLite format 3\0"
_SQLITE_LOGS: Final = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83", b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7")
_MARK: Final = slice(68, 72)
"""Position of the application id in the header of a SQLite file."""
_UTF16: Final = (b"\xff\xfe", b"\xfe\xff")


def why_secret(path: str, data: bytes) -> str | None:
    """Return the reason why a file may contain a secret, or `None` if there is no such reason. ``path`` is relative,
    with forward slashes."""
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
        return "the log of a database in use"
    if data.startswith(_SQLITE) and _is_ours(data):
        return "a task or session store"
    return "tokens" if data.lstrip()[:1] in (b"{", b"[") and _OF_TOKENS.search(data) else None


def _is_ours(data: bytes) -> bool:
    from ..stores.sqlite_database import TASKS

    return int.from_bytes(data[_MARK]) == TASKS.application

"""``trio-mcp pack``: packs a server for registries and hosts."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sqlite3
import sys
import tomllib
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.cli.commands import TRIO_MCP, Ended, plain_environment, run, written
from tests.published_schemas import MANIFEST, SERVER_JSON, faults

from trio_mcp import Command, Server, SQLiteStorage, serve_http
from trio_mcp.cli.bundles import files_of
from trio_mcp.cli.printable import CommandError
from trio_mcp.stores import SQLiteTaskStore

PACK = [*TRIO_MCP, "pack"]
NAME = ["--name", "com.example/weather"]
WEATHER = """
    from trio_mcp import Server
    from trio_mcp.types import Icon

    server = Server(
        "weather", "1.0.2", title="Weather", description="Weather for places", website_url="https://example.com",
        icons=[Icon("https://example.com/i.png", "image/png", ["48x48"]), Icon("data:image/png;base64,AA==")],
    )

    @server.tool
    async def forecast(place: str) -> str:
        '''Tell the weather.'''
        return f"rain in {place}"

    @server.tool(visible=lambda auth: False)
    async def hidden() -> str:
        return ""

    @server.prompt
    async def ask() -> str:
        return "?"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "weather"
    folder.mkdir()
    written(folder / "app.py", WEATHER)
    return folder


async def pack(folder: Path, *options: str, file: str = "app.py") -> Ended:
    return await run([*PACK, str(folder / file), *NAME, "-o", str(folder / "dist"), *options])


def bundle(folder: Path) -> zipfile.ZipFile:
    return zipfile.ZipFile(folder / "dist" / "weather.mcpb")


def document(folder: Path) -> Any:
    return json.loads((folder / "dist" / "server.json").read_text())


async def test_pack_command_writes_a_bundle_whose_manifest_files_match_their_schemas(folder: Path) -> None:
    download = "https://github.com/example/weather/releases/download/v1.0.2/weather.mcpb"
    ended = await pack(folder, "--download", download, "--url", "https://example.com/mcp", "--author", "Ann")
    assert (ended.status, ended.stdout) == (0, "")
    told = document(folder)
    assert faults(SERVER_JSON, told) == []
    assert told["packages"] == [
        {
            "registryType": "mcpb",
            "identifier": download,
            "version": "1.0.2",
            "fileSha256": hashlib.sha256((folder / "dist" / "weather.mcpb").read_bytes()).hexdigest(),
            "transport": {"type": "stdio"},
        }
    ]
    assert told["remotes"] == [{"type": "streamable-http", "url": "https://example.com/mcp"}]
    assert [icon["src"] for icon in told["icons"]] == ["https://example.com/i.png"]
    with bundle(folder) as archive:
        assert archive.namelist() == ["app.py", "manifest.json", "pyproject.toml", "trio_mcp_entry.py"]
        manifest = json.loads(archive.read("manifest.json"))
        project = tomllib.loads(archive.read("pyproject.toml").decode())
    assert faults(MANIFEST, manifest) == []
    assert manifest["server"] == {
        "type": "uv",
        "entry_point": "trio_mcp_entry.py",
        "mcp_config": {"command": "uv", "args": ["run", "--directory", "${__dirname}", "trio_mcp_entry.py"]},
    }
    assert (manifest["name"], manifest["display_name"], manifest["author"]) == ("weather", "Weather", {"name": "Ann"})
    assert manifest["tools"] == [{"name": "forecast", "description": "Tell the weather."}]
    assert manifest["prompts_generated"] is True
    assert project["project"]["dependencies"][0].startswith("trio-mcp[cli]>=")


async def test_pack_command_without_urls_warns_and_omits_the_urls(folder: Path) -> None:
    ended = await pack(folder)
    assert ended.status == 0
    assert "server.json has no URL: set the URL of the bundle with --download" in ended.stderr
    told = document(folder)
    assert faults(SERVER_JSON, told) == []
    assert {"packages", "remotes"}.isdisjoint(told)
    with bundle(folder) as archive:
        assert json.loads(archive.read("manifest.json"))["author"] == {"name": "example.com"}


@pytest.mark.parametrize(("file", "shown"), [("app.py", "src/app.py"), ("app.py:server", "src/app.py:server")])
async def test_packed_server_can_be_started_and_called(folder: Path, tmp_path: Path, file: str, shown: str) -> None:
    (folder / "src").mkdir()
    (folder / "app.py").rename(folder / "src" / "app.py")
    assert (await pack(folder, "--folder", str(folder), file=f"src/{file}")).status == 0
    unpacked = tmp_path / "unpacked"
    with bundle(folder) as archive:
        archive.extractall(unpacked)
    command = Command([sys.executable, str(unpacked / "trio_mcp_entry.py")], env=plain_environment(), cwd=str(tmp_path))
    async with command.open() as client:
        assert (await client.call_tool("forecast", {"place": "Oslo"})).content[0].text == "rain in Oslo"  # pyright: ignore[reportAttributeAccessIssue]


async def test_pack_command_creates_an_identical_bundle_from_the_same_files(folder: Path) -> None:
    for name in ("b.txt", "a.txt", "z/y.txt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(name)
    os.chmod(folder / "b.txt", 0o700)
    assert (await pack(folder)).status == 0
    first = (folder / "dist" / "weather.mcpb").read_bytes()
    for name in ("app.py", "a.txt", "b.txt", "z"):
        os.utime(folder / name, (1, 1))
    os.chmod(folder / "a.txt", 0o600)
    assert (await pack(folder)).status == 0
    assert (folder / "dist" / "weather.mcpb").read_bytes() == first
    with bundle(folder) as archive:
        names = [info.filename for info in archive.infolist()]
        modes = {info.filename: info.external_attr >> 16 & 0o777 for info in archive.infolist()}
    assert names == sorted(names)
    assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    assert (modes["a.txt"], modes["b.txt"]) == (0o644, 0o755)


async def test_pack_command_does_not_include_an_earlier_bundle_in_the_next_bundle(folder: Path) -> None:
    for _ in range(2):
        ended = await run([*PACK, str(folder / "app.py"), *NAME, "-o", str(folder)])
        assert ended.status == 0
    with zipfile.ZipFile(folder / "weather.mcpb") as archive:
        assert archive.namelist() == ["app.py", "manifest.json", "pyproject.toml", "trio_mcp_entry.py"]


async def test_pack_command_omits_caches_repositories_env_files_and_files_that_the_user_excludes(
    folder: Path,
) -> None:
    left_out = (".env", ".git/config", "__pycache__/app.pyc", "env/pyvenv.cfg", "tests/test.py", "node_modules/a.js")
    for name in (*left_out, "kept/data.txt", "notes.db"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("text")
    ended = await pack(folder, "--exclude", "tests", "--exclude", "*.db")
    assert ended.status == 0
    assert "trio-mcp: .env is not in the bundle\n" in ended.stderr
    with bundle(folder) as archive:
        assert archive.namelist() == [
            *("app.py", "kept/data.txt", "manifest.json", "pyproject.toml", "trio_mcp_entry.py"),
        ]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("id_rsa", ""),
        ("certs/server.key", "-----BEGIN RSA PRIVATE KEY-----"),
        ("server.pem", "-----BEGIN PRIVATE KEY-----"),
        ("credentials.json", "{}"),
        ("Secrets.toml", ""),
    ],
)
async def test_pack_command_refuses_files_that_look_like_secrets_if_they_are_not_excluded(
    folder: Path, name: str, text: str
) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    ended = await pack(folder)
    assert ended.status == 2
    assert f"{name} looks like a secret" in ended.stderr
    assert not (folder / "dist").exists()
    assert (await pack(folder, "--exclude", name)).status == 0


DER = bytes.fromhex("308204be020100300d06092a864886f70d0101010500048204a8")
KEY_TEXT = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQ"
KEY_LINES = f"-----BEGIN PRIVATE KEY-----\n{KEY_TEXT}\n-----END PRIVATE KEY-----\n"
ENCRYPTED = f"-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00FF\n\n{KEY_TEXT}\n"
NAMES = """
    prod.env config/prod.env.local env.production settings.local.json secret.txt my-secrets.yml
    token.json tokens.json token access_token.txt github-token googleToken.json auth.json oauth.yaml
    gcp-key.json gcp_key.json api_key.txt apikey keyfile.json apiKeys.yaml master.key
    credentials aws-credentials.ini db_creds.toml my-credentials.csv passwords.txt db-password
    htpasswd netrc pgpass.conf vault.kdbx kubeconfig user_accessKeys.csv serviceAccount.json
    app-firebase-adminsdk-1.json terraform.tfstate prod.tfvars vpn.ovpn krb5.keytab
    deploy_rsa id_ed25519 k.ppk store.jks cert.p12 AuthKey_1.p8 backup.gpg
    traffic.har wire.pcap cookies.txt secrets/db credentials/a.json private/x.yml
    claude_desktop_config.json.bak
"""
SECRETS: dict[str, bytes | str] = {
    **dict.fromkeys(NAMES.split(), "{}"),
    "deploy": KEY_LINES,
    "notes.txt": "here it is:\n  " + KEY_LINES.replace("\n", "\n  "),
    "service.json": '{"key": "' + KEY_LINES.replace("\n", "\\n") + '"}',
    "app_settings.py": f"KEY = ({KEY_LINES.splitlines(keepends=True)!r})",
    "far.bin": b"\0" * 3_000_000 + KEY_LINES.encode(),
    "windows.txt": KEY_LINES.replace("\n", "\r\n").encode("utf-16"),
    "encrypted": ENCRYPTED,
    "ssh": f"-----BEGIN OPENSSH PRIVATE KEY-----\n{KEY_TEXT}",
    "gnu": f"-----BEGIN PGP PRIVATE KEY BLOCK-----\nVersion: 1\n\n{KEY_TEXT}",
    "putty": "PuTTY-User-Key-File-3: ssh-ed25519\n",
    "age": "# created\nAGE-SECRET-KEY-1QQPQQPQQPQQPQQPQQPQQPQQ",
    "wg0.conf": "[Interface]\nPrivateKey = yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=",
    "some.der": DER,
    "jwk.data": '{"kty":"EC","crv":"P-256","d":"jpsQnnGQmL-YBIffH1136cspYG6-0iY7X1fCE9-E9LI"}',
    "session.log": '{"recording":1,"id":"0123456789abcdef","role":"server","pid":1,"wall":1.0}\n',
    "kept": '{"stored":{"current":"https://i","issuers":{"https://i":{"tokens":{"access_token":"x"}}}},"version":1}',
}


@pytest.mark.parametrize("name", SECRETS)
def test_pack_command_recognises_secrets_by_file_name_or_content(tmp_path: Path, name: str) -> None:
    content = SECRETS[name]
    (path := tmp_path / name).parent.mkdir(exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(CommandError, match=f"{re.escape(name)} looks like a secret"):
        files_of(tmp_path, tmp_path / "dist", [])
    assert list(files_of(tmp_path, tmp_path / "dist", [name]).files) == []
    assert list(files_of(tmp_path, tmp_path / "dist", [], [name]).files) == [name]


A_STORE = "looks like a secret .a task or session store"


async def test_pack_command_treats_an_open_or_closed_task_store_database_as_a_secret(tmp_path: Path) -> None:
    async with SQLiteTaskStore(tmp_path / "data.bin") as store:
        await store.expire(limit=0)
        with pytest.raises(CommandError, match=r"data\.bin-wal looks like a secret .the log of a database in"):
            files_of(tmp_path, tmp_path / "dist", [])
    with pytest.raises(CommandError, match=f"data.bin {A_STORE}"):
        files_of(tmp_path, tmp_path / "dist", [])


async def test_pack_command_treats_a_shared_storage_database_as_a_secret(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(serve_http, Server("x"), port=0, shared=SQLiteStorage(tmp_path / "data.bin")))
        nursery.cancel_scope.cancel(reason="the store is made")
    with pytest.raises(CommandError, match=f"data.bin {A_STORE}"):
        files_of(tmp_path, tmp_path / "dist", ["*.bin-*"])


def test_pack_command_includes_files_that_only_resemble_secrets(tmp_path: Path) -> None:
    plain = {
        **dict.fromkeys(
            ("tokenizer.json", "tokens.py", "auth.py", "keymap.json", "key_bindings.json", "monkey.txt"), "{}"
        ),
        **dict.fromkeys(("authors.txt", "public-key.txt", "credentials.md", "environment.yml", "keyboard.png"), "x"),
        "check.py": 'if "-----BEGIN PRIVATE KEY-----" in text: raise ValueError',
        "ca.crt": "-----BEGIN CERTIFICATE-----\nMIIEvQIBADANBgkqhkiG9w0BAQ",
        "lines.jsonl": '{"recordings": 1}\n',
        "jwks_public.data": '{"kty":"EC","crv":"P-256","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU"}',
    }
    for name, text in plain.items():
        (tmp_path / name).write_text(text)
    with sqlite3.connect(tmp_path / "places.db") as database:
        database.execute("CREATE TABLE places (name)")
    database.close()
    found = files_of(tmp_path, tmp_path / "dist", [])
    assert set(found.files) == {*plain, "places.db"}


async def test_pack_command_reports_all_secrets_at_once_and_lists_all_excluded_files(folder: Path) -> None:
    for name in ("prod.env", "token.json", ".env", ".git/config", "notes.db", "__pycache__/app.pyc"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("{}")
    ended = await pack(folder)
    assert ended.status == 2
    assert "prod.env looks like a secret (by its name); token.json looks like a secret (by its name). " in ended.stderr
    ended = await pack(folder, "--exclude", "*.env", "--include", "token.json", "--exclude", "notes.db")
    assert ended.status == 0
    left_out = [line for line in ended.stderr.splitlines() if line.endswith("is not in the bundle")]
    listed = (".env", ".git/", "__pycache__/", "notes.db", "prod.env")
    assert left_out == [f"trio-mcp: {name} is not in the bundle" for name in listed]
    with bundle(folder) as archive:
        assert "token.json" in archive.namelist()


def test_pack_command_does_not_check_files_of_installed_packages_for_secrets(tmp_path: Path) -> None:
    (tmp_path / "lib" / "some-1.0.dist-info").mkdir(parents=True)
    (tmp_path / "lib" / "some").mkdir()
    (tmp_path / "lib" / "some-1.0.dist-info" / "RECORD").write_text("some/token.json,sha256=x,2\n../prod.env,,\n")
    (tmp_path / "lib" / "some" / "token.json").write_text("{}")
    assert "lib/some/token.json" in files_of(tmp_path, tmp_path / "dist", []).files
    (tmp_path / "prod.env").write_text("A=1")
    with pytest.raises(CommandError, match=r"^prod\.env looks like a secret"):
        files_of(tmp_path, tmp_path / "dist", [])


async def test_pack_command_refuses_symlink_loops_and_symlinks_to_excluded_files(folder: Path) -> None:
    (folder / "loop").symlink_to("loop")
    for options in ([], ["--folder", str(folder)]):
        ended = await pack(folder, *options)
        assert (ended.status, ended.stderr.count("\n"), "loop is not a file" in ended.stderr) == (2, 1, True)
    assert (await run([*PACK, str(folder / "app.py"), *NAME, "-o", str(folder / "loop")])).stderr.count("\n") == 1
    (folder / "loop").unlink()
    for name, complaint in ((".env", ".env is left out of the bundle"), ("prod.env", "looks like a secret")):
        (folder / name).write_text("A=1")
        (folder / "settings").symlink_to(name)
        ended = await pack(folder)
        assert (ended.status, complaint in ended.stderr) == (2, True)
        (folder / "settings").unlink()


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
async def test_pack_command_reports_an_unreadable_file_in_one_line(folder: Path) -> None:
    for name in ("file", "below"):
        path = folder / name
        path.mkdir() if name == "below" else path.write_text("")
        path.chmod(0)
        ended = await pack(folder)
        assert (ended.status, ended.stderr.count("\n"), f"{name} cannot be read" in ended.stderr) == (2, 1, True)
        path.chmod(0o700)


async def test_pack_command_does_not_treat_a_certificate_as_a_secret(folder: Path) -> None:
    (folder / "ca.pem").write_text("-----BEGIN CERTIFICATE-----")
    assert (await pack(folder)).status == 0


async def test_pack_command_refuses_symlinks_that_leave_the_folder(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("text")
    for target, complaint in (
        (outside / "file", "is a symbolic link to a file outside of the folder"),
        (outside, "link to a folder"),
        ("x", "not a file"),
    ):
        (folder / "link").symlink_to(target)
        ended = await pack(folder)
        assert (ended.status, complaint in ended.stderr) == (2, True)
        (folder / "link").unlink()
    os.mkfifo(folder / "pipe")
    assert "pipe is not a file" in (await pack(folder)).stderr
    (folder / "pipe").unlink()
    (folder / "link").symlink_to("app.py")
    assert (await pack(folder)).status == 0
    with bundle(folder) as archive:
        assert archive.read("link") == archive.read("app.py")


@pytest.mark.parametrize("name", ["manifest.json", "trio_mcp_entry.py"])
async def test_pack_command_refuses_a_folder_with_files_that_the_command_would_generate(
    folder: Path, name: str
) -> None:
    (folder / name).write_text("{}")
    ended = await pack(folder)
    assert (ended.status, f"{name} is a file that pack itself writes into the bundle" in ended.stderr) == (2, True)


async def test_pack_command_requires_trio_mcp_in_the_dependencies_of_an_existing_project(folder: Path) -> None:
    project = folder / "pyproject.toml"
    for text, complaint in (
        (
            '[project]\nname = "w"\nversion = "1"\ndependencies = ["httpx"]',
            "must have trio-mcp[cli] among its dependencies",
        ),
        ("[project", "cannot be read"),
        ("project = 7", "must have trio-mcp[cli]"),
    ):
        project.write_text(text)
        ended = await pack(folder)
        assert (ended.status, complaint in ended.stderr) == (2, True)
    text = '[project]\nname = "w"\nversion = "1"\ndependencies = ["trio-mcp[cli]"]'
    project.write_text(text)
    assert (await pack(folder, "--dependency", "httpx")).status == 2
    assert (await pack(folder)).status == 0
    with bundle(folder) as archive:
        assert archive.read("pyproject.toml").decode() == text


async def test_pack_command_with_dependency_option_adds_packages_if_there_is_no_project_file(folder: Path) -> None:
    needed = 'httpx>=0.28; python_version >= "3.11"'
    assert (await pack(folder, "--dependency", needed)).status == 0
    with bundle(folder) as archive:
        assert tomllib.loads(archive.read("pyproject.toml").decode())["project"]["dependencies"][1] == needed


async def test_pack_command_for_the_python_runtime_requires_installed_packages_in_the_folder(folder: Path) -> None:
    ended = await pack(folder, "--runtime", "python")
    assert (ended.status, "pip install --target lib" in ended.stderr) == (2, True)
    (folder / "lib" / "trio_mcp").mkdir(parents=True)
    (folder / "lib" / "trio_mcp" / "__init__.py").write_text("")
    assert (await pack(folder, "--runtime", "python")).status == 0
    with bundle(folder) as archive:
        manifest = json.loads(archive.read("manifest.json"))
        assert "pyproject.toml" not in archive.namelist()
    assert faults(MANIFEST, manifest) == []
    assert manifest["server"]["mcp_config"]["env"] == {"PYTHONPATH": "${__dirname}/lib"}
    assert manifest["compatibility"]["platforms"] == [sys.platform]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--name", "weather"], "like com.example/weather"),
        (["--download", "http://example.com/w.mcpb"], "must begin with https://"),
        (["--download", "https://example.com/w.zip"], 'must contain "mcp"'),
        (["--url", "no url"], "an HTTP URL"),
        (["--dependency", "a\nb"], "is not a valid package name"),
        (["--exclude", "app.py"], "would not be in the bundle"),
    ],
)
async def test_pack_command_reports_invalid_options_as_usage_errors(
    folder: Path, options: list[str], complaint: str
) -> None:
    ended = await pack(folder, *options)
    assert (ended.status, complaint in " ".join(ended.stderr.split())) == (2, True), ended.stderr
    assert not (folder / "dist").exists()


@pytest.mark.parametrize(
    ("code", "status", "complaint"),
    [
        ("from trio_mcp import Server; server = Server('w', '1.0')", 2, "this one is empty"),
        ("from trio_mcp import Server; server = Server('w', '^1.0', description='d')", 2, "must be one exact version"),
        ("from trio_mcp import Server; server = Server('w', '1', description='d' * 101)", 2, "this one has 101"),
        ("raise RuntimeError('broken')", 1, "RuntimeError: broken"),
        ("", 2, "no server in"),
    ],
)
async def test_pack_command_reports_a_server_that_cannot_be_loaded(
    folder: Path, code: str, status: int, complaint: str
) -> None:
    written(folder / "app.py", code)
    ended = await pack(folder)
    assert (ended.status, complaint in " ".join(ended.stderr.split())) == (status, True), ended.stderr
    assert not (folder / "dist").exists()


async def test_pack_command_refuses_a_server_outside_the_packed_folder(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    ended = await pack(folder, "--folder", str(tmp_path / "other"))
    assert (ended.status, "would not be in the bundle" in " ".join(ended.stderr.split())) == (2, True)


async def test_pack_command_reports_an_output_folder_that_cannot_be_written(folder: Path) -> None:
    (folder / "dist").write_text("")
    ended = await run([*PACK, str(folder / "app.py"), *NAME, "-o", str(folder / "dist" / "below")])
    assert (ended.status, "dist" in ended.stderr) == (1, True)

"""The package where it is installed without any extra: names are there, and the use of one says what to install."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from tests.public import FACE

import trio_mcp


def needed_by(name: str, found: dict[str, Distribution]) -> None:
    """Find the distributions that ``name`` needs without any extra."""
    if name not in found:
        found[name] = distribution(name)
        for line in found[name].requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                needed_by(requirement.name, found)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package and what it needs, as an environment has them that was made without extras."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "trio_mcp").symlink_to(Path(trio_mcp.__file__).parent)
    found = dict[str, Distribution]()
    needed_by("trio-mcp", found)
    del found["trio-mcp"]
    for each in found.values():
        for top in {file.parts[0] for file in each.files or ()} - {"..", "__pycache__"}:
            (folder / top).symlink_to(str(each.locate_file(top)))
    return folder


def run(site: Path, code: str) -> str:
    """Run ``code`` there, and return what it prints."""
    start = f"import sys; sys.path.append({str(site)!r})\n"
    ended = subprocess.run(
        [sys.executable, "-I", "-S", "-c", start + code], capture_output=True, text=True, check=False
    )
    assert not ended.returncode, ended.stderr
    return ended.stdout


def test_environment_has_no_extras_installed(site: Path) -> None:
    code = """
from importlib.util import find_spec
extras = "httpx2 joserfc yaml keyring coredis opentelemetry griffe watchfiles click rich prometheus_client".split()
print([each for each in extras if find_spec(each) is not None])
"""
    assert run(site, code) == "[]\n"


@pytest.mark.parametrize("module", FACE)
def test_star_import_without_installed_extras_provides_every_public_name(site: Path, module: str) -> None:
    code = f"from {module} import *\nimport {module} as module\nprint(set(module.__all__) - set(globals()) or [])"
    assert run(site, code) == "[]\n"


@pytest.mark.parametrize("module", [*FACE, "trio_mcp.aio", "trio_mcp.blocking", "trio_mcp.testing"])
def test_public_module_can_be_inspected_without_extras(site: Path, module: str) -> None:
    code = f"""
import inspect, pydoc
import {module} as module
inspect.getmembers(module)
pydoc.render_doc(module)
print([name for name in module.__all__ if not hasattr(module, name)])
"""
    assert run(site, code) == "[]\n"


def test_internal_modules_can_be_inspected_without_extras(site: Path) -> None:
    code = """
import inspect, pydoc
from trio_mcp.auth.resource_server import keys, proof_checks, verifiers
from trio_mcp.openapi import arguments, document, responses, tools
from trio_mcp.skills import folder
for module in (keys, proof_checks, verifiers, arguments, document, responses, tools, folder):
    for name, value in inspect.getmembers(module):
        inspect.getmembers(value), inspect.unwrap(value) if callable(value) else None
    pydoc.render_doc(module)
"""
    assert run(site, code) == ""


@pytest.mark.parametrize(
    ("use", "message"),
    {
        "from_openapi({}, http=None, operations=[])": "from_openapi needs httpx2: install 'trio-mcp[openapi]'",
        "JWTVerifier()": "checking signatures needs joserfc: install trio-mcp[auth]",
        "Skills()": "skills need PyYAML: install trio-mcp[skills]",
    }.items(),
)
def test_using_a_name_without_its_extra_raises_import_error_that_names_the_extra(
    site: Path, use: str, message: str
) -> None:
    imports = "from trio_mcp import *\nfrom trio_mcp.auth import *\n"
    code = f"{imports}try:\n    {use}\nexcept ImportError as error:\n    print(error)"
    assert run(site, code) == f"{message}\n"


@pytest.mark.parametrize("name", ["FastMCP", "Context", "nothing", "_nothing", "__wrapped__"])
def test_hasattr_returns_false_for_an_unknown_name_of_the_package(site: Path, name: str) -> None:
    assert run(site, f"import trio_mcp\nprint(hasattr(trio_mcp, {name!r}), getattr(trio_mcp, {name!r}, 0))") == (
        "False 0\n"
    )


def test_importing_a_name_of_another_sdk_raises_import_error_that_names_the_replacement() -> None:
    with pytest.raises(ImportError, match=r"trio_mcp has no FastMCP; write Server"):
        from trio_mcp import FastMCP  # noqa: F401 # pyright: ignore


def test_attribute_name_of_another_sdk_raises_attribute_error_that_names_the_replacement() -> None:
    with pytest.raises(AttributeError, match=r"trio_mcp has no FastMCP; write Server"):
        trio_mcp.FastMCP  # noqa: B018 # pyright: ignore

"""No release with a known fault satisfies what the package asks for."""

from __future__ import annotations

import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

PROJECT: dict[str, Any] = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
REQUIREMENTS = [
    Requirement(text)
    for texts in (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
    for text in texts
    if not text.startswith("trio-mcp[")
]
FAULTY = {
    "cryptography": ["46.0.4", "46.0.6", "48.0.0", "49.0.0"],
    "h11": ["0.15.0"],
    "httptools": ["0.6.2"],
    "joserfc": ["1.6.4", "1.6.6"],
    "click": ["8.3.2"],
    "starlette": ["1.0.0", "1.0.1"],
    "orjson": ["3.11.5"],
    "pytest": ["9.0.2"],
}
"""The last releases with faults that advisories tell of. pyproject.toml says which."""


@pytest.mark.parametrize("name", FAULTY)
def test_requirements_of_the_package_exclude_dependency_releases_with_known_bugs(name: str) -> None:
    (requirement,) = [each for each in REQUIREMENTS if each.name == name]
    assert [release for release in FAULTY[name] if requirement.specifier.contains(release)] == []


@pytest.mark.parametrize("requirement", REQUIREMENTS, ids=lambda requirement: requirement.name)
def test_each_dependency_is_required_with_a_minimum_version(requirement: Requirement) -> None:
    assert [each for each in requirement.specifier if each.operator in (">=", "~=", "==")]


def test_installed_dependencies_satisfy_the_requirements() -> None:
    core = [Requirement(text) for text in PROJECT["dependencies"]]
    assert [each for each in core if not each.specifier.contains(version(each.name))] == []

"""The tools around the package: scripts, pinned versions, and what may not stand in a file of the repository."""

from __future__ import annotations

import os
import re
import runpy
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from tests.kit.commands import REPOSITORY, start

# Written so that this file does not match itself.
MACHINE_PATH = re.compile(r"/(wor[k]|far[m]|roo[t])/|/hom[e]/\w+/")
REGISTRY_HOST = re.compile(
    r"py[p]i\.org|python[h]osted\.org|download\.py[t]orch\.org|ana[c]onda\.(org|com)|docker[.]io|gh[c]r\.io|qua[y]\.io"
)


def version_of_package() -> str:
    return str(runpy.run_path(str(REPOSITORY / "pbgeval" / "version.py"))["__version__"])


def repository_files() -> list[Path]:
    """Files that are or would be committed."""
    listing = start(["git", "ls-files", "--cached", "--others", "--exclude-standard"], REPOSITORY)
    if listing.status != 0:
        pytest.skip("not a git checkout")
    return [REPOSITORY / name for name in listing.out.splitlines() if (REPOSITORY / name).is_file()]


def test_every_script_without_a_suffix_is_executable_and_names_its_interpreter() -> None:
    scripts = [path for path in (REPOSITORY / "scripts").iterdir() if path.is_file() and not path.suffix]
    scripts.append(REPOSITORY / ".ci" / "run")

    assert [path.name for path in scripts if not os.access(path, os.X_OK)] == []
    assert [path.name for path in scripts if not path.read_text(encoding="utf-8").startswith("#!/usr/bin/env ")] == []
    assert "scripts/test --all" in scripts[-1].read_text(encoding="utf-8"), "CI runs every test by the one command"


def test_every_requirement_has_a_lowest_version_and_one_that_is_pinned_without_local_tag() -> None:
    lines = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    pinned = {name.lower().replace("_", "-"): version for name, version in pairs}
    made = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    project = made["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values(), *made["dependency-groups"].values()]
    needed = [Requirement(text) for texts in lists for text in texts]

    assert pinned["torch"] == "2.13.0"
    assert {"torch", "typer", "pytest", "import-linter"} <= {of.name for of in needed}
    assert [of for of in needed if not str(of.specifier).startswith(">=")] == []
    assert [of for of in needed if pinned[of.name] not in of.specifier] == []
    assert [name for name, version in pinned.items() if "+" in version] == []


# The name is on no index: its extras and itself are installed from a clone or a wheel, others by their own names.
NOT_INSTALLABLE = re.compile(r"pbgeva[l]\[[a-z0-9,]+\]|install (-\S+ )*'?pbgeva[l]\b(?!-\d)")


def test_no_message_or_page_advises_to_install_a_package_that_is_on_no_index() -> None:
    texts = [path for path in repository_files() if path.suffix not in {".png", ".h5", ".pt"}]
    found = {path.name for path in texts if NOT_INSTALLABLE.search(path.read_bytes().decode(errors="replace"))}

    assert {".py", ".md", ".yaml", ""} <= {path.suffix for path in texts}
    assert found == set()


def test_the_page_of_the_package_lists_all_extras() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = (REPOSITORY / "PACKAGE.md").read_text(encoding="utf-8")
    told = page.partition("Extras: ")[2].partition("\n\n")[0]

    assert sorted(re.findall(r"`(\w+)`", told)) == sorted(project["optional-dependencies"])


def test_the_page_of_the_package_has_no_relative_link() -> None:
    """An index shows it without the files that are beside it."""
    links = re.findall(r"\]\(([^)\s]+)\)", (REPOSITORY / "PACKAGE.md").read_text(encoding="utf-8"))

    assert [link for link in links if not link.startswith("https://")] == []


DOCKERFILES = sorted((REPOSITORY / "docker").glob("*.Dockerfile"))


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
def test_a_dockerfile_copies_what_exists_and_runs_the_command(path: Path) -> None:
    """It is linted, not built: there is no container engine here."""
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    instructions = [line.split(" ", 1) for line in text.splitlines() if re.match("[A-Z]+ ", line)]
    copied = [name for kind, words in instructions if kind == "COPY" for name in words.split()[:-1]]
    made = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    extras = re.search(r'"\.\[([\w,]+)\]"', text)
    shown = (REPOSITORY / ".dockerignore").read_text(encoding="utf-8").splitlines()

    assert {"pyproject.toml", "setup.py", made["project"]["readme"], "constraints.txt", "pbgeval"} <= set(copied)
    assert [name for name in copied if not (REPOSITORY / name).exists() or f"!{name}" not in shown] == []
    assert extras is not None
    assert set(extras[1].split(",")) <= made["project"]["optional-dependencies"].keys()
    assert ["ENTRYPOINT", '["kgeval-dist"]'] in instructions
    assert ["FROM", "python:3.11-slim"] in instructions, "the Python of constraints.txt"
    pinned = re.search(r"^torch==(\S+)$", (REPOSITORY / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert pinned is not None
    assert set(re.findall(r"torch==([\d.]+)", text)) <= {pinned[1]}
    assert start([Path(sys.executable).parent / "hadolint", "--no-color", path], REPOSITORY).printed == ""


def test_the_version_stands_in_one_place_and_in_the_changelog() -> None:
    version = version_of_package()

    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert "## [Unreleased]" in (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text(encoding="utf-8"))
    assert (citation["cff-version"], citation["version"]) == ("1.2.0", version)
    made = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    assert (made["project"].get("version"), made["project"]["dynamic"]) == (None, ["version"])


def test_no_file_names_a_path_of_one_machine_or_a_registry() -> None:
    """Data files, which are not UTF-8, neither."""
    texts = {path: path.read_text(encoding="utf-8", errors="replace") for path in repository_files()}

    assert [
        f"{path.relative_to(REPOSITORY)}: {match[0]}"
        for path, text in texts.items()
        for pattern in (MACHINE_PATH, REGISTRY_HOST)
        for match in pattern.finditer(text)
    ] == []

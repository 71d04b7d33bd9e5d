"""The package as users get it: a wheel from a copy of the checkout, in an environment with chosen libraries only.

Libraries are links to those of the tests' own environment, so that nothing is fetched. There are those that the wheel's
metadata asks for, what these ask for in turn, and no others: a library that the package imports and does not name is
missing. What an extra brings is asked for by name:

    installed.run("-m", "pbgeval", "--help", cwd=folder)
    installed.run("-m", "pbgeval", "report", output, cwd=folder, extra="report")
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from attrs import frozen
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import made_once
from tests.kit.commands import REPOSITORY, Done, start
from tests.patience import PATIENCE


@frozen
class Built:
    """What is made of a copy of the checkout."""

    wheel: Path
    sdist: Path


@frozen
class InstalledWheel:
    """An environment with the wheel and what it requires, without the libraries of any extra."""

    folder: Path
    wheel: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        [path] = self.folder.glob("lib/python*/site-packages")
        return path

    def run(self, *arguments: str | Path, cwd: Path, program: str = "python") -> Done:
        """Run a program of the environment."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV_"))}
        environment |= {"OMP_NUM_THREADS": "1"}
        variables = ["env", "-i", *(f"{name}={value}" for name, value in environment.items())]
        return start([*variables, self.folder / "bin" / program, *arguments], cwd)

    def libraries_of(self, extra: str) -> Path:
        """Make a folder of the libraries of an extra, if need be."""
        (self.folder / "extras").mkdir(exist_ok=True)
        names = with_requirements(requirements_of(self.wheel, extra))
        return made_once(self.folder / "extras" / extra, lambda folder: link_libraries(folder, names))


@pytest.fixture(scope="session")
def built(shared_folder: Path) -> Built:
    """The wheel and the source distribution, made once for all test processes."""
    folder = made_once(shared_folder / "built", _build_both)
    [wheel], [sdist] = folder.glob("wheel/*.whl"), folder.glob("sdist/*.tar.gz")
    return Built(wheel, sdist)


def _build_both(folder: Path) -> None:
    # Not the checkout itself: setuptools leaves files in it, and takes up what earlier builds have left.
    ignored = (REPOSITORY / ".gitignore").read_text(encoding="utf-8").split()
    skipped = shutil.ignore_patterns(".git", *(pattern.rstrip("/") for pattern in ignored))
    checkout = Path(shutil.copytree(REPOSITORY, folder / "checkout", ignore=skipped))
    build_wheel(checkout, folder / "wheel")
    _build(
        ["-c", "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"],
        folder / "sdist",
        checkout,
        "*.tar.gz",
    )


@pytest.fixture(scope="session")
def installed(built: Built, shared_folder: Path) -> InstalledWheel:
    """The wheel in an environment of its own, made once for all test processes."""
    return InstalledWheel(made_once(shared_folder / "installed", functools.partial(_install, built)), built.wheel)


def _install(built: Built, folder: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=PATIENCE)
    environment = InstalledWheel(folder, built.wheel)
    install = ["install", "--quiet", "--no-deps", "--no-index", "--no-compile", "--disable-pip-version-check"]
    done = start([sys.executable, "-m", "pip", "--python", environment.python, *install, built.wheel], Path())
    assert done.status == 0, done.err
    take_compiled_loops(environment.site_packages)
    of_extras = {
        canonicalize_name(of.name) for extra in extras_of(built.wheel) for of in requirements_of(built.wheel, extra)
    }
    # torch brings some of them along; where it does not, they are missing.
    link_libraries(environment.site_packages, with_requirements(requirements_of(built.wheel)) - of_extras)


def take_compiled_loops(folder: Path) -> None:
    """Let what numba has compiled of the checkout's loops serve a copy of them: each takes some ten seconds."""
    for kept in (REPOSITORY / "pbgeval").rglob("__pycache__/*.nb[ic]"):
        loop = kept.parent.parent / f"{kept.name.partition('.')[0]}.py"  # numba looks at the time of this file
        for path, copy in ((loop, shutil.copystat), (kept, shutil.copy2)):
            place = folder / path.relative_to(REPOSITORY)
            place.parent.mkdir(exist_ok=True)
            copy(path, place)


def build_wheel(source: Path, folder: Path) -> Path:
    """Build the wheel of a checkout or of a source distribution by pip."""
    # torch has brought a setuptools that builds wheels, so pip need not fetch one.
    flags = ["--no-deps", "--no-build-isolation", "--quiet", "--disable-pip-version-check"]
    [wheel] = _build(["-m", "pip", "wheel", source, *flags, "-w"], folder, folder.parent, "*.whl")
    return wheel


def _build(arguments: list[str | Path], folder: Path, cwd: Path, pattern: str) -> list[Path]:
    folder.mkdir()
    done = start([sys.executable, *arguments, folder], cwd)
    assert done.status == 0, done
    return list(folder.glob(pattern))


def extras_of(wheel: Path) -> set[str]:
    """Return the names of a wheel's extras."""
    return set(_metadata_of(wheel).get_all("Provides-Extra") or [])


def requirements_of(wheel: Path, extra: str | None = None) -> list[Requirement]:
    """Return what a wheel requires here, of an extra only that."""
    wanted = [Requirement(line) for line in _metadata_of(wheel).get_all("Requires-Dist") or []]
    core = [of for of in wanted if of.marker is None or of.marker.evaluate({"extra": ""})]
    if extra is None:
        return core
    return [of for of in wanted if of not in core and of.marker is not None and of.marker.evaluate({"extra": extra})]


def _metadata_of(wheel: Path) -> importlib.metadata.PackageMetadata:
    # A wheel is an archive that Python can import from, and so ask for metadata.
    [distribution] = importlib.metadata.distributions(name="pbgeval", path=[str(wheel)])
    return distribution.metadata


def with_requirements(requirements: Iterable[Requirement]) -> set[str]:
    """Return the names of required distributions and of all that they require in turn."""
    found: set[tuple[str, str]] = set()  # names, each with an extra or none
    wanted = list(requirements)
    while wanted:
        requirement = wanted.pop()
        name = canonicalize_name(requirement.name)
        for extra in {"", *requirement.extras} - {of for known, of in found if known == name}:
            found.add((name, extra))
            further = map(Requirement, importlib.metadata.requires(name) or [])
            wanted += [of for of in further if of.marker is None or of.marker.evaluate({"extra": extra})]
    return {name for name, _ in found}


def link_libraries(folder: Path, names: Iterable[str]) -> None:
    """Link all that these distributions have installed into a folder."""
    for distribution in map(importlib.metadata.distribution, sorted(names)):
        tops = {path.parts[0] for path in distribution.files or []} - {"..", "__pycache__"}
        assert tops, f"{distribution.name} does not list its files"
        for top in sorted(tops):
            if not (folder / top).exists():  # some share a folder
                (folder / top).symlink_to(Path(str(distribution.locate_file(top))).resolve())

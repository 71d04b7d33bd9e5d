"""Links and paths in README.md and docs/: what they lead to is there."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path

from scripts import reference_docs
from tests.kit.commands import REPOSITORY

_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_OUTSIDE = re.compile(r"[a-z]+:")  # https:, mailto:
_HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
_PATH = re.compile(r"`((?:docs|scripts|docker|benchmarks|tests|pbgeval)/[\w./-]+)`")


@functools.cache
def generated() -> set[Path]:
    """The pages that are made of the code, when the site is built."""
    return {REPOSITORY / "docs" / "reference" / name for name in reference_docs.pages()}


@functools.cache
def written() -> list[Path]:
    """All other pages."""
    pages = sorted({*(REPOSITORY / "docs").rglob("*.md")} - generated())
    return [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *pages]


def named(page: Path) -> str:
    return page.relative_to(REPOSITORY).as_posix()


def links_of(text: str) -> list[str]:
    """Targets of links and pictures that stand outside code."""
    return _LINK.findall(_CODE.sub("", _FENCED.sub("", text)))


def anchors_of(text: str) -> set[str]:
    """What headings are called in a link: lower case, words and hyphens, a number behind those that repeat."""
    anchors: set[str] = set()
    for heading in _HEADING.findall(_FENCED.sub("", text)):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        number = 0
        while (anchor := f"{slug}-{number}" if number else slug) in anchors:
            number += 1
        anchors.add(anchor)
    return anchors


def faults_of(page: Path, text: str) -> Iterator[str]:
    """A line for each link that leads nowhere."""
    for link in links_of(text):
        if _OUTSIDE.match(link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if target in generated():
            continue
        if not target.exists():
            yield f"{link}: no such file"
        elif anchor and (target.suffix != ".md" or anchor not in anchors_of(target.read_text(encoding="utf-8"))):
            yield f"{link}: no such heading"


def test_every_relative_link_leads_to_a_file_and_a_heading() -> None:
    assert [
        f"{named(page)}: {of}" for page in written() for of in faults_of(page, page.read_text(encoding="utf-8"))
    ] == []


def test_every_path_of_the_repository_that_is_named_exists() -> None:
    texts = {named(page): page.read_text(encoding="utf-8") for page in written() if page.name != "log.md"}
    paths = [(page, path) for page, text in texts.items() for path in _PATH.findall(_FENCED.sub("", text))]

    # A module may be named without its ending, a decision by its number.
    assert [of for of in paths if "NNNN" not in of[1] and not any(REPOSITORY.glob(f"{of[1]}*"))] == []


def test_every_page_is_reached_from_the_front_page_or_the_readme() -> None:
    reached = {REPOSITORY / "docs" / "index.md"}
    waiting = [REPOSITORY / "README.md", *reached]
    while waiting:
        page = waiting.pop()
        for link in links_of(page.read_text(encoding="utf-8")):
            target = (page.parent / link.partition("#")[0]).resolve()
            if target.suffix == ".md" and target.is_file() and target not in reached:
                reached.add(target)
                waiting.append(target)

    pages = {path for path in (REPOSITORY / "docs").rglob("*.md") if path.parent.name != "decisions"}
    assert pages - reached - generated() == set()

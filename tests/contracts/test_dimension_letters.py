"""The name of an array ends in the letters that `pbgeval/notation.py` declares, one per dimension."""

from __future__ import annotations

import ast
import re

from pbgeval import notation
from tests.kit.commands import REPOSITORY

LETTERS = set("QCBEKPDNRG")
KERNELS = {
    "scoring/chain_kernels.py",
    "scoring/device_scores.py",
    "scoring/exact_kernels.py",
    "scoring/list_kernels.py",
    "scoring/pair_kernels.py",
}
OF_KERNELS = set("MLSW")  # blocks of M x N cells, L candidates in transposed layouts, segments, words
FILES = sorted((REPOSITORY / "pbgeval").rglob("*.py"))


def names_of(module: ast.Module) -> set[str]:
    """Return the names of variables, arguments and attributes."""
    names = set()
    for node in ast.walk(module):
        match node:
            case ast.Name(id=name) | ast.arg(arg=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
                names.add(name)
    return names


def undeclared(names: set[str], letters: set[str]) -> set[str]:
    """Return the names that end in a letter of no dimension; constants and classes have no such end."""
    found = set()
    for name in names:
        end = re.fullmatch(r"_*[a-z]\w*_(\w*[A-Z]\w*)", name)
        if end and not {letter for letter in end[1] if letter.isupper()} <= letters:
            found.add(name)
    return found


def test_every_dimension_has_a_declared_letter() -> None:
    found = {}
    for path in FILES:
        name = path.relative_to(REPOSITORY / "pbgeval").as_posix()
        letters = LETTERS | OF_KERNELS if name in KERNELS else LETTERS
        found[name] = undeclared(names_of(ast.parse(path.read_text("utf-8"))), letters)
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


def test_the_letters_are_those_that_the_notation_declares() -> None:
    assert notation.__doc__ is not None
    declared = notation.__doc__.partition("A digit")[0]
    assert set(re.findall(r"(?:^ +| {2,})([A-Z]) (?=[a-z])", declared, re.MULTILINE)) == LETTERS

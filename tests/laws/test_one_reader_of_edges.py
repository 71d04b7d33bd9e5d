"""What DuckDB reads of a text file, the plain reader reads, too; and lines at once, as one after the other."""

from __future__ import annotations

import gzip
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pbgeval.errors import EvalError
from pbgeval.importing.edge_files import load_edges, open_edges
from pbgeval.importing.engine import Engine
from pbgeval.progress import Observer
from pbgeval.storage.edge_columns import ColumnForm
from pbgeval.storage.edge_text import EdgeText, magic_of_edges

Found = tuple[list[tuple[str, ...]], list[str]] | str  # edges and warnings, or the fault

FORMS = [
    *[ColumnForm()] * 6,
    *(ColumnForm(comment=text) for text in ("#", "a", '"')),
    *(ColumnForm(delimiter=letter) for letter in " |'"),
    *(ColumnForm(order) for order in ("ht", "thr_", "_hrt")),
    ColumnForm(names=("a", "r", "b")),
    ColumnForm(names=("head", "", "tail")),
]
LETTERS = ["a", "b", "r", " ", '"', '""', "'", "#", "é", "\ufeff", "\u2028", "\x00", "\x01", "\x02", "\x0b"]
names = st.lists(st.sampled_from(LETTERS), min_size=1, max_size=3).map("".join)
quoted = st.lists(st.sampled_from([*LETTERS[:4], ",", "\n", "\r\n", "\t", '""', "\r"]), max_size=3).map(
    lambda parts: f'"{"".join(parts)}"'
)
fields = st.one_of(names, names, st.sampled_from(["a", "r", "b", "head", "tail", ""]), quoted, quoted.map(" {}".format))
lines = st.lists(fields, min_size=1, max_size=5)
edges = st.lists(fields, min_size=3, max_size=3)
ends = st.sampled_from(["\n", "\n", "\n", "\r\n", "\r", "\n\n", ""])


@st.composite
def files(draw: st.DrawFn) -> tuple[str, ColumnForm, bytes]:
    """A name, a form and a content that is more or less one of edges."""
    name, form = draw(st.sampled_from(["t.csv", "t.tsv", "t"])), draw(st.sampled_from(FORMS))
    delimiter = form.delimiter_in(Path(name))
    rows = draw(st.lists(st.one_of(edges, edges, edges, lines), min_size=1, max_size=4))
    text = "".join(delimiter.join(row) + draw(ends) for row in rows)
    if draw(st.booleans()):
        text = text.replace("\r\n", "\n").replace("\r", "").replace("\n", draw(st.sampled_from(["\n", "\r\n"])))
    content = (draw(st.sampled_from(["", "", "\ufeff"])) + text).encode()
    cut = draw(st.sampled_from([None, None, None, None, 0, 5]))
    return name, form, content if cut is None else gzip.compress(content, mtime=0)[: -cut or None]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with Engine(tmp_path_factory.mktemp("engine") / "tables", None, Observer()) as opened:
        yield opened


def found_by(read: Callable[[], tuple[list[tuple[str, ...]], list[str]]], path: Path) -> Found:
    try:
        edges, warnings = read()
    except EvalError as error:
        return str(error).replace(str(path), "PATH")
    return edges, [warning.replace(str(path), "PATH") for warning in warnings]


def by_engine(engine: Engine, path: Path, form: ColumnForm) -> Found:
    def read() -> tuple[list[tuple[str, ...]], list[str]]:
        warnings = load_edges(engine, "edges", open_edges(engine, path, form))
        return engine.run("SELECT lhs, rel, rhs FROM edges ORDER BY rowid"), warnings

    try:
        return found_by(read, path)
    finally:
        engine.run("DROP TABLE IF EXISTS edges")


def by_text(path: Path, form: ColumnForm) -> Found:
    def read() -> tuple[list[tuple[str, ...]], list[str]]:
        magic_of_edges(path)
        warnings = list[str]()
        blocks = EdgeText.open(path, form).names(warnings.append)
        return [edge for block in blocks for edge in zip(*block, strict=True)], warnings

    return found_by(read, path)


@example(("t.tsv", ColumnForm(), b"a\tr\tb\na\tr\t \r\n"))  # ends that DuckDB takes for equal
@example(("t.csv", ColumnForm(), b'a,r,b\na, "b,c",d\n'))  # DuckDB passes over one space
@example(("t.csv", ColumnForm(), b'a,r,b\na,  "b",d\n'))  # but not over two
@example(("t.csv", ColumnForm(), b'a,r,"x, ""y"""\n'))  # which is as it should be
@example(("t.tsv", ColumnForm(comment="#"), "#\n\ufeffa\tr\tb\n".encode()))
@example(("t.tsv", ColumnForm(), b"a\tr\tb\t\n"))
@example(("t.tsv", ColumnForm(), b"head\trelation\ttail\na\tr\tb\n"))
@given(files())
def test_the_engine_and_the_plain_reader_find_the_same(engine: Engine, file: tuple[str, ColumnForm, bytes]) -> None:
    name, form, content = file
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_bytes(content)

        assert by_text(path, form) == by_engine(engine, path, form)


@given(files(), st.integers(1, 9))
def test_lines_at_once_give_what_one_line_after_the_other_gives(
    file: tuple[str, ColumnForm, bytes], bytes_of_a_block: int
) -> None:
    name, form, content = file
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_bytes(content)
        with mock.patch("pbgeval.storage.edge_text._Reading._cut_at_once", return_value=None):
            by_line = by_text(path, form)

        with mock.patch("pbgeval.storage.text._BYTES_AT_A_TIME", bytes_of_a_block):
            assert by_text(path, form) == by_line

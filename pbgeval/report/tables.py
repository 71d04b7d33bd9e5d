"""Tables of text, written for the terminal, Markdown, LaTeX and CSV; `templates/parts.html` writes them as HTML."""

from __future__ import annotations

import html
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from io import StringIO
from itertools import compress
from typing import IO, TYPE_CHECKING, Any

from attrs import Factory, evolve, field, frozen

from pbgeval.errors import OutputError, required
from pbgeval.metrics.names import resolve
from pbgeval.storage.text import printable

if TYPE_CHECKING:
    import pandas
    from rich.console import Console, Group

CELL_BYTES = 6  # of the tags around a cell of HTML
ROW_BYTES = 16
MAX_BORDERED = 4  # columns of a table on the terminal that has room for lines between them
NEEDS_BOOKTABS = r"% needs \usepackage{booktabs}"
MAX_CHARACTERS = 500  # of a name; the files have it whole


@frozen(eq=False)
class DataTable:
    """A table of text; the first cell of a row says whose figures follow."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    note: str = ""  # below it: what was left out, what the figures mean
    anchor: str = ""  # of letters, digits and dashes
    kinds: str = field(default=Factory(lambda self: "l" + "r" * (len(self.columns) - 1), takes_self=True))
    # a letter per column: l text, r numbers
    whole_words: Collection[str] = ()  # columns of text whose words the terminal does not break
    wide: Collection[str] = ()  # columns that a phone hides until they are asked for
    lead: str = ""  # above it: what it comes to


def fitting(rows: Iterable[Sequence[str]], num_bytes: int) -> tuple[tuple[str, ...], ...]:
    """Return the first rows, as many as fit into so many bytes of HTML, with names clipped."""
    chosen: list[tuple[str, ...]] = []
    for row in rows:
        cells = tuple(map(clipped, row))
        num_bytes -= ROW_BYTES + sum(CELL_BYTES + len(html.escape(cell).encode()) for cell in cells)
        if num_bytes < 0:
            break
        chosen.append(cells)
    return tuple(chosen)


def left_out(shown: int, total: int, what: str, file: str) -> str:
    """Return the note on rows that did not fit; empty where all did."""
    return "" if shown == total else f"{shown:,} of {total:,} {what} are shown; {file} has all."


def without(table: DataTable, names: Collection[str]) -> DataTable:
    """Return a table without some of its columns."""
    is_kept = [name not in names for name in table.columns]
    columns, kinds, *rows = (tuple(compress(row, is_kept)) for row in (table.columns, table.kinds, *table.rows))
    return evolve(table, columns=columns, kinds="".join(kinds), rows=tuple(rows))


def clipped(text: str) -> str:
    """Return a name of a length that can be read."""
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}…"


class Printed(ABC):
    """What prints as tables: as text, in a notebook, and with rich."""

    @abstractmethod
    def _printed(self) -> Sequence[DataTable]:
        """Return the tables, with warnings below the first one."""

    def __repr__(self) -> str:
        return "\n\n".join(map(to_text, self._printed()))

    def __rich__(self) -> Group:
        from rich.console import Group

        return Group(*map(to_terminal, self._printed()))

    def _repr_html_(self) -> str:
        return "".join(map(to_html, self._printed()))


class FigureRow(dict[str, Any]):
    """A row of a report's table, whose figures have all of their names: `row["tail.mrr"]`."""

    def __init__(self, row: Mapping[str, Any], headline: str) -> None:
        super().__init__(row)
        self._headline = headline  # the rank type of a name without one

    def __missing__(self, name: str) -> Any:  # noqa: ANN401 - a number or a text
        """Return the figure of another name.

        Raises:
            KeyError: no such column; the message names the nearest.
        """
        return self[resolve(name, self._headline, self.keys())]


@frozen(eq=False, repr=False)
class Table(Printed):
    """The rows of a report's table, numbers as they are. It prints the columns that are worth their width."""

    _rows: Sequence[Mapping[str, Any]]
    _shown: Callable[[], DataTable]
    _headline: str = ""  # the rank type that figures have whose name has none; empty: the rows have no figures

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        """All rows; their figures have the names that the report's have."""
        return [FigureRow(row, self._headline) for row in self._rows] if self._headline else self._rows

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of all rows; none where there is no row."""
        return tuple(next(iter(self._rows), ()))

    def to_pandas(self) -> pandas.DataFrame:
        """Return all rows and columns as a data frame.

        Raises:
            OutputError: pandas is not installed.
        """
        return data_frame(self._rows, self.columns)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return iter(self.rows)

    def __getitem__(self, at: int | slice) -> Any:  # noqa: ANN401 - a row, or a list of rows
        return self.rows[at]

    def __len__(self) -> int:
        return len(self._rows)

    def _printed(self) -> list[DataTable]:
        return [self._shown()]


def data_frame(rows: Iterable[Any], columns: Sequence[str]) -> pandas.DataFrame:
    """Return rows as a data frame.

    Raises:
        OutputError: pandas is not installed.
    """
    with required(OutputError, "pandas is required for a data frame", "pandas"):
        import pandas
    return pandas.DataFrame(list(rows), columns=list(columns))


# The terminal, as text, and HTML for a notebook


def console_of(file: IO[str] | None = None) -> Console:
    """Return a console for a file or stdout, which breaks no line where that is no terminal."""
    from rich.console import Console

    # In Jupyter, rich would display what is printed, whatever the file.
    console = Console(file=file, force_jupyter=None if file is None else False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = 100_000  # more than a line of any table has
    return console


def with_warnings(tables: Sequence[DataTable], warnings: Iterable[str]) -> list[DataTable]:
    """Return tables with warnings below the first one."""
    first, *others = tables
    told = (f"Warning: {warning}." for warning in warnings)
    return [evolve(first, note="\n".join(filter(None, (first.note, *told)))), *others]


def unbroken(tables: Iterable[DataTable]) -> str:
    """Return tables as a pipe has them: no line is broken."""
    file = StringIO()
    console_of(file).print(*map(to_terminal, tables), sep="\n")
    return file.getvalue()


def to_text(table: DataTable, width: int = 120) -> str:
    """Return the table as `to_terminal` does, in plain text of so many columns."""
    from rich.console import Console

    file = StringIO()
    Console(file=file, width=width, color_system=None, force_jupyter=False).print(to_terminal(table))
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def to_html(table: DataTable) -> str:
    """Return the title, the table and its note as HTML."""
    head = "".join(f"<th>{html.escape(column)}</th>" for column in table.columns)
    starts = [f'<td style="text-align: {"left" if kind == "l" else "right"}">' for kind in table.kinds]
    cells = (
        "".join(f"{start}{html.escape(cell)}</td>" for start, cell in zip(starts, row, strict=True))
        for row in table.rows
    )
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    lead, note = ("".join(f"<p>{html.escape(line)}</p>" for line in of.splitlines()) for of in (table.lead, table.note))
    return (
        f"{lead}<table><caption>{html.escape(table.title)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
        f"</table>{note}"
    )


def to_terminal(table: DataTable) -> Group:
    """Return what it comes to, the title, the table and the lines of its note for `Console.print`."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0)) if len(table.columns) > MAX_BORDERED else Table()
    for at, (title, kind) in enumerate(zip(table.columns, table.kinds, strict=True)):
        words = " ".join([title, *(row[at] for row in table.rows)]).split() if title in table.whole_words else ()
        shown.add_column(
            Text(title),
            justify="left" if kind == "l" else "right",
            no_wrap=kind == "r",
            overflow="fold",
            min_width=max(map(len, words), default=None),
        )
    for row in table.rows:
        shown.add_row(*(Text(printable(cell)) for cell in row))
    lead = [Text(f"{printable(table.lead)}\n")] if table.lead else []
    return Group(*lead, Text(printable(table.title)), shown, *map(Text, table.note.splitlines()))


# Markdown and LaTeX that show any text as it is, on one line

_IN_MARKDOWN = re.compile(r"[#$*@\[\\\]^_`{|}~]")
_NOTHING = "\0"  # in no text that is shown
_IN_LATEX = {
    _NOTHING: "{}",
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "_": r"\_",
    "%": r"\%",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "[": "{[}",  # after the end of a row it would begin a length
    "]": "{]}",
    "`": "{`}",  # with another, or after ! or ?, it would join to one sign
    "'": "'{}",
    "±": r"$\pm$",
    "–": "--",
    "−": "$-$",
    "…": r"\ldots{}",
}


def to_markdown(table: DataTable, left: str = ":--") -> str:
    """Return the heads and rows, without title and note; `left` is the rule below a head of text."""
    rule = "|" + "|".join(left if kind == "l" else "--:" for kind in table.kinds) + "|"
    head, *rows = (f"| {' | '.join(map(escape_markdown, row))} |" for row in (table.columns, *table.rows))
    return "\n".join([head, rule, *rows])


def to_latex(table: DataTable) -> str:
    """Return a tabular with the rules of booktabs, without title and note."""
    head, *rows = (" & ".join(map(escape_latex, row)) + r" \\" for row in (table.columns, *table.rows))
    return "\n".join(
        [
            rf"\begin{{tabular}}{{{table.kinds}}}",
            r"\toprule",
            head,
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}",
        ]
    )


def in_latex(table: DataTable, caption: str) -> str:
    """Return the table with a caption, which may be any text, a label, and its note in small print below it."""
    lines = r"\begin{table}", r"\centering", rf"\caption{{{escape_latex(caption)}}}", rf"\label{{tab:{table.anchor}}}"
    note = [r"\par\smallskip", rf"\footnotesize {escape_latex(table.note)}"] if table.note else []
    return "\n".join([*lines, to_latex(table), *note, "\\end{table}\n"])


def latex_warnings(warnings: Iterable[str]) -> list[str]:
    """Return warnings as comments."""
    return [f"% warning: {one_line(warning)}" for warning in warnings]


def all_in_markdown(tables: Iterable[DataTable]) -> str:
    """Return tables with all that is told above and below them."""
    parts = [
        part
        for table in tables
        for part in (
            escape_markdown(table.lead),
            escape_markdown(table.title),
            to_markdown(table, left="---"),
            *map(escape_markdown, table.note.splitlines()),
        )
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def all_in_latex(tables: Iterable[DataTable]) -> str:
    """Return tables with captions of all that is told above them."""
    captions = [(table, [f"{table.title}.", table.lead]) for table in tables]
    return "\n".join([NEEDS_BOOKTABS, *(in_latex(table, " ".join(filter(None, told))) for table, told in captions)])


def escape_markdown(text: str) -> str:
    """Return text that Markdown shows as it is, on one line and within a cell."""
    return _IN_MARKDOWN.sub(r"\\\g<0>", one_line(text)).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def escape_latex(text: str) -> str:
    """Return text that LaTeX shows as it is, on one line and within a cell."""
    # Two would join to a dash, or a low quote; one is the sign of a number, too.
    apart = re.sub(r"([-,])(?=\1)", rf"\1{_NOTHING}", one_line(text))
    return "".join(_IN_LATEX.get(letter, letter) for letter in apart)


def one_line(text: str) -> str:
    """Return text without line breaks and other letters that are not shown."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def interval_line(low: str, high: str, name: str = "95%\u00a0interval") -> str:
    """Return what a tile says of an interval; it breaks before a figure if at all."""
    return f"{name} {low}\u00a0to {high}"

"""Any text -> Markdown or LaTeX that shows it as it is, on one line; rows of tables of such cells."""

from __future__ import annotations

import re
from collections.abc import Sequence

_IN_MARKDOWN = re.compile(r"[!\"#$%'()*+,\-./:;=?@\[\\\]^_`{|}~]")
_PLAIN_IN_MARKDOWN = set("!\"%'(),-./:;=?+")  # within a line they mean nothing
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


def escape_markdown(text: str) -> str:
    """Return text that Markdown shows as it is, on one line and within a cell."""

    def escaped(match: re.Match[str]) -> str:
        return match[0] if match[0] in _PLAIN_IN_MARKDOWN else f"\\{match[0]}"

    plain = one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"&(amp|lt|gt)\\;", r"&\1;", _IN_MARKDOWN.sub(escaped, plain))


def escape_latex(text: str) -> str:
    """Return text that LaTeX shows as it is, on one line and within a cell."""
    # Two would join to a dash, or a low quote; one is the sign of a number, too.
    apart = re.sub(r"([-,])(?=\1)", rf"\1{_NOTHING}", one_line(text))
    return "".join(_IN_LATEX.get(letter, letter) for letter in apart)


def row_of_markdown(cells: Sequence[str]) -> str:
    """Return a row of a table."""
    return f"| {' | '.join(map(escape_markdown, cells))} |"


def row_of_latex(cells: Sequence[str]) -> str:
    """Return a row of a table."""
    return " & ".join(map(escape_latex, cells)) + r" \\"


def one_line(text: str) -> str:
    """Return text without line breaks and other letters that are not shown."""
    return "".join(letter if letter.isprintable() else " " for letter in text)

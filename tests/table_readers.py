"""Markdown and LaTeX -> the cells of their tables, as a reader sees them; by markdown-it and by plasTeX.

To plasTeX, an interpreter of TeX, letters mean what they mean to TeX: a bare `&`, `_`, `%` or `[` does what it would do
there. What plasTeX adds to TeX's ligatures is left out.
"""

from __future__ import annotations

import logging
import re
from itertools import pairwise

from markdown_it import MarkdownIt

# plasTeX makes its own class that of all loggers made later in the process: theirs would print to our stderr.
_OF_LOGGERS = logging.getLoggerClass()
import plasTeX  # noqa: E402
from plasTeX.Config import defaultConfig  # noqa: E402
from plasTeX.TeX import TeX  # noqa: E402

logging.setLoggerClass(_OF_LOGGERS)

# Those of TeX's fonts.
_LIGATURES = [("---", "—"), ("--", "–"), ("``", "“"), ("''", "”"), ("!`", "¡"), ("?`", "¿"), (",,", "„")]


def rows_of_markdown(text: str) -> list[list[str]]:
    """Return the cells of all tables, row by row; fails where a cell is more than plain text."""
    tokens = MarkdownIt("gfm-like", {"linkify": False}).parse(text)
    rows: list[list[str]] = []
    for before, token in pairwise(tokens):
        if before.type == "tr_open":
            rows.append([])
        if before.type in ("th_open", "td_open"):
            assert {"text", "text_special"} >= {child.type for child in token.children or []}
            rows[-1].append("".join(child.content for child in token.children or []))
    return rows


def rows_of_latex(text: str) -> list[list[str]]:
    """Return the cells of all tables, row by row; quotes and minus signs are those of a keyboard.

    Args:
        text: what stands between the begin and the end of a document that uses booktabs.
    """
    document = plasTeX.TeXDocument(config=defaultConfig())
    document.charsubs = _LIGATURES
    tex = TeX(document)
    tex.input(f"\\documentclass{{article}}\\usepackage{{booktabs}}\\begin{{document}}\n{text}\n\\end{{document}}\n")
    tables = tex.parse().getElementsByTagName("tabular")
    return [[on_a_keyboard(cell.textContent) for cell in row] for table in tables for row in table if len(row)]


def on_a_keyboard(text: str) -> str:
    """Return text with a keyboard's quotes and minus, and one space between words."""
    return re.sub(r"\s+", " ", text.translate(str.maketrans({"\u2019": "'", "\u2018": "`", "−": "-"}))).strip()

"""A file of edges of any form -> the names of its edges, for what needs no numbers of partitions.

Text is read without DuckDB, which is needed for Parquet and zstd alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from pbgeval.errors import ConfigError
from pbgeval.importing.edge_files import load_edges, open_edges
from pbgeval.importing.engine import Engine
from pbgeval.progress import Observer
from pbgeval.storage.edge_columns import TYPES, ColumnForm
from pbgeval.storage.edge_text import ENDS_AND_RELATION, PARQUET_MAGIC, EdgeText, Names, magic_of_edges
from pbgeval.storage.text import ZSTD, listed
from pbgeval.storage.writing import temporary_folder

_EDGES = "edges"


def edge_names(path: Path, form: ColumnForm, warn: Callable[[str], object]) -> Iterator[Names]:
    """Yield left ends, relations and right ends of all edges, in blocks, in the order of the file.

    Args:
        path: the file.
        form: which columns it has: no weight and no time.
        warn: is told at the end what is doubtful about the file.

    Raises:
        EvalError: the file is not as its name and the form say, as in an import.
    """
    unused = [name for name in form.columns if name in TYPES]
    if unused:
        raise ConfigError(
            f"{form.flag}: {listed(unused)} has no effect here; write _ for its letter, or leave its name out"
        )
    magic = magic_of_edges(path)
    if magic not in (PARQUET_MAGIC, ZSTD):
        yield from EdgeText.open(path, form).names(warn)
        return
    with temporary_folder() as folder, Engine(folder / "tables", None, Observer()) as engine:
        warnings = load_edges(engine, _EDGES, open_edges(engine, path, form))
        for block in engine.blocks(_EDGES, ENDS_AND_RELATION):
            lhs, rel, rhs = (block[name].tolist() for name in ENDS_AND_RELATION)
            yield lhs, rel, rhs
        for warning in warnings:
            warn(warning)

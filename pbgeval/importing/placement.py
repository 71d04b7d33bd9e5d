"""A table of edges by name, and dictionaries -> buckets of a folder, and what of it is unknown or repeated.

Rows keep the order of their files within a bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby, islice, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from attrs import asdict, frozen

from pbgeval.errors import DataError
from pbgeval.importing.dictionaries import RelationTypes, Sizes, plain_form
from pbgeval.importing.engine import Engine, quoted
from pbgeval.notation import Bucket
from pbgeval.storage.checkpoint_files import create_bucket
from pbgeval.storage.left_out import UNKNOWN, LeftOut
from pbgeval.storage.text import cell_of, name_of, one_line, plural
from pbgeval.storage.writing import write_atomically

_NUMBERS = {"weight": np.dtype(np.float64), "time": np.dtype(np.int64)}  # beside ids
MIN_LIKENESS = 0.8  # of a known name that may be meant, from 0 to 1
# What to do about edges with unknown names: by the option of a command, or the key of a config.
SKIP_BY_OPTION = "--unknown skip leaves such edges out"
SKIP_BY_KEY = "correct the names, or leave these edges out with unknown='skip' (-p unknown=skip)"


@frozen
class ImportedEdges(LeftOut):
    """Counts of edges that were read, written and left out."""

    num_buckets: int  # with an edge
    num_repeated: int  # written edges beyond the first of equal ones, at one time; weights may differ

    @property
    def num_written(self) -> int:
        """Edges of which all names are known."""
        return self.num_read - self.num_left_out

    def to_dict(self) -> dict[str, Any]:
        """Return the counts by name."""
        return asdict(self) | {"num_written": self.num_written}


@frozen
class KnownNames:
    """Whose names are known, for messages."""

    folder: Path  # of the dictionary, or the model whose labels they are
    columns: str  # how those of the edges are read
    # What there is where names are the numbers of rows, by what `unknown.tsv` calls it: entity:TYPE or relation.
    rows: Mapping[str, str] = {}
    advice: str = SKIP_BY_OPTION  # what to do about edges with other names
    of_model: bool = False  # they are a model's labels, so arrays may have the numbers of its rows


def place_edges(
    engine: Engine,
    table: str,
    types: RelationTypes,
    sizes: Sizes,
    folder: Path,
    known: KnownNames,
    warn: Callable[[str], None],
) -> ImportedEdges:
    """Write the buckets of a table of edges, which is dropped; beside them, what was left out as names are unknown.

    Args:
        engine: with the tables of the dictionary.
        table: of edges by name.
        types: of relations.
        sizes: of partitions.
        folder: of the buckets.
        known: the dictionary.
        warn: is told of unknown names that resemble known ones.

    Raises:
        DataError: no edge is left.
        OutputError: something cannot be written.
    """
    num_read = engine.num_rows(table)
    found = [row[0] for row in engine.run(f"DESCRIBE {table}")]
    numbers = [name for name in _NUMBERS if name in found]
    num_rhs = max(map(len, sizes.values()))
    engine.run(  # bucket, lhs, rel, rhs, and further numbers, by bucket and then as the rows stood
        f"CREATE TABLE placed AS SELECT (l.part::BIGINT * {num_rhs} + r.part) AS bucket, l.row AS lhs, q.id AS rel, "
        f"r.row AS rhs{''.join(f', e.{name}' for name in numbers)} FROM {table} e "
        "JOIN relations q ON q.name = e.rel "
        "JOIN entities l ON l.type = q.lhs_type AND l.name = e.lhs "
        "JOIN entities r ON r.type = q.rhs_type AND r.name = e.rhs "
        "ORDER BY bucket, e.rowid"
    )
    num_written = engine.num_rows("placed")
    unknown = (0, 0) if num_read == num_written else _write_unknown(engine, table, types, folder / UNKNOWN, warn)
    engine.run(f"DROP TABLE {table}")
    if not num_written:
        raise _nothing_is_known(folder, num_read, known)
    edge = "bucket, lhs, rel, rhs, time" if "time" in numbers else "bucket, lhs, rel, rhs"
    num_repeated = sum(
        int(
            engine.row(
                "SELECT coalesce(sum(copies - 1), 0) FROM (SELECT count(*) AS copies FROM placed "
                f"WHERE {condition} GROUP BY {edge} HAVING count(*) > 1)"
            )[0]
        )
        for condition in engine.parts_of_groups("lhs", num_written)
    )
    num_buckets = _write_buckets(engine, folder, num_rhs, sizes, numbers)
    left_out = LeftOut(num_read, num_read - num_written, *unknown)
    left_out.write(folder)
    engine.run("DROP TABLE placed")
    return ImportedEdges(**asdict(left_out), num_buckets=num_buckets, num_repeated=num_repeated)


def _nothing_is_known(folder: Path, num_read: int, known: KnownNames) -> DataError:
    """Say why no edge of a file has all of its names in the dictionary."""
    (kind, name), example = _first_unknown(folder)
    missing = ["relations.tsv" if one == "relation" else "entities.tsv" for one in sorted(known.rows, reverse=True)]
    if kind in known.rows and not name.isdigit() and known.folder.is_dir() and len(missing) < 3:
        options = " ".join(f"--{file.removesuffix('.tsv')} FILE" for file in reversed(missing))
        elsewhere = (
            "set dictionary_path to a folder with them" if known.advice == SKIP_BY_KEY else f"name them with {options}"
        )
        return DataError(
            f"{folder.name} has names, but the model folder {known.folder} has no {' and no '.join(missing)}, so only "
            f"row numbers are known; add these files (one label per line, in the order of the rows), or {elsewhere}, "
            f"or use numbers ({known.rows[kind]})"
        )
    if known.of_model and kind not in known.rows and name.isdigit():
        return DataError(
            f"{folder.name} has numbers, but the model {known.folder} has labels ({example} is none of them); use its "
            "labels, or give the numbers as an array (.npy) of shape (edges, 3)"
        )
    there = f" ({known.rows[kind]})" if kind in known.rows else ""
    return DataError(
        f"{folder.name}: none of {num_read:,} edges has all of its names in the dictionary {known.folder}; for "
        f"example, {example} is missing{there}; {known.columns}; is it the dictionary of these edges?"
    )


def _write_buckets(engine: Engine, folder: Path, num_rhs: int, sizes: Sizes, numbers: Sequence[str]) -> int:
    """Write `placed` as files; memory follows a block of rows, and one file is open at a time."""
    counts = dict(engine.run("SELECT bucket, count(*) FROM placed GROUP BY bucket"))
    integer = np.dtype(np.int32 if max(map(max, sizes.values())) <= np.iinfo(np.int32).max else np.int64)
    dtypes = dict.fromkeys(("lhs", "rel", "rhs"), integer) | {name: _NUMBERS[name] for name in numbers}
    for bucket, parts in groupby(_parts_of_buckets(engine, dtypes), itemgetter(0)):
        file = create_bucket(folder, Bucket(*divmod(bucket, num_rhs)), int(counts[bucket]), dtypes)
        row = 0
        for _, columns in parts:
            file.write(row, columns)
            row += len(columns["lhs"])
        file.sync()
    return len(counts)


def _parts_of_buckets(engine: Engine, names: Iterable[str]) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """Yield rows of `placed` that are of one bucket each, with it, in order."""
    num_written = 0
    num_rows = engine.num_rows("placed")
    for block in engine.blocks("placed", ["bucket", *names]):
        starts = np.flatnonzero(np.diff(block["bucket"], prepend=block["bucket"][:1] - 1)).tolist()
        for start, stop in pairwise([*starts, len(block["bucket"])]):
            yield int(block["bucket"][start]), {name: block[name][start:stop] for name in names}
        num_written += len(block["bucket"])
        engine.observer.advanced(num_written / num_rows)


def _write_unknown(
    engine: Engine, table: str, types: RelationTypes, path: Path, warn: Callable[[str], None]
) -> tuple[int, int]:
    """List what the dictionaries lack, most frequent first; return how many entities and relations.

    Of edges whose relation is unknown, entities are not looked at, as nothing says their type.
    """
    ends = " UNION ALL ".join(
        f"SELECT q.{side}_type AS type, e.{side} AS name FROM {table} e JOIN relations q ON q.name = e.rel"
        for side in ("lhs", "rhs")
    )
    words = " ".join(f"WHEN {index} THEN {quoted(name)}" for index, name in enumerate(types.entity_types))
    engine.run(
        f"CREATE TABLE unknown AS SELECT CASE type {words} END AS type, name, count(*) AS copies "
        f"FROM ({ends}) ANTI JOIN entities USING (type, name) GROUP BY ALL "
        f"UNION ALL SELECT NULL, rel, count(*) FROM {table} ANTI JOIN relations ON relations.name = rel GROUP BY rel"
    )
    entities, relations = engine.row("SELECT count(type), count(*) - count(type) FROM unknown")
    variants = _count_variants(engine, f"CASE known.type {words} END")
    if variants is not None:
        warn(f"{path.parent.name}: {variants}")
    engine.run(
        "CREATE TABLE listed AS SELECT coalesce('entity:' || type, 'relation') AS what, name, copies FROM unknown "
        "ORDER BY copies DESC, what, name"
    )
    columns = ["what", "name", "copies"]
    rows = (zip(*(block[key].tolist() for key in columns), strict=True) for block in engine.blocks("listed", columns))
    write_atomically(path, unknown_lines(chain.from_iterable(rows)))
    engine.run("DROP TABLE unknown")
    engine.run("DROP TABLE listed")
    return int(entities), int(relations)


def _count_variants(engine: Engine, known_type: str) -> str | None:
    """Say how many unknown names differ from known ones only in their Unicode form or in white space; None: none."""
    pairs = " UNION ALL ".join(
        f"SELECT unknown.name AS name, known.name AS near FROM unknown JOIN {table} known "
        f"ON {condition} AND {plain_form('unknown.name')} = {plain_form('known.name')}"
        for table, condition in (("entities", f"unknown.type = {known_type}"), ("relations", "unknown.type IS NULL"))
    )
    count, name, near = engine.row(f"SELECT count(DISTINCT name), min(name), min_by(near, name) FROM ({pairs})")
    if not count:
        return None
    return (
        f"{plural(int(count), 'unknown name')} would be known but for the Unicode form or white space at an end, "
        f"for example {name!a} instead of {near!a}"
    )


def refuse_unknown(
    what: str,
    counts: ImportedEdges,
    buckets: Path,
    known: KnownNames,
    engine: Engine | None = None,
    warnings: Sequence[str] = (),
) -> None:
    """Refuse edges with unknown names: metrics without them would be those of another graph.

    Args:
        what: the file or option that the edges come from.
        counts: of the edges.
        buckets: the folder with `unknown.tsv`.
        known: the dictionary.
        engine: with the tables of the dictionary, to find the nearest known name; None: it is not sought.
        warnings: about the file, not shown yet, that may say why: a header that is read as an edge, for example.

    Raises:
        DataError: there are such edges; it names the most frequent unknown name, and the nearest known one.
    """
    if not counts.num_left_out:
        return
    (kind, name), example = _first_unknown(buckets, known.rows)
    order = f"; {known.columns}" if counts.num_unknown_relations else ""
    few = f"{what}: {counts.num_left_out:,} of {counts.num_read:,} edges have"
    if kind in known.rows:
        raise DataError(
            f"{few} ids that the model lacks ({counts.unknown_names}, for example {example}): "
            f"{known.rows[kind]}{order}",
            *warnings,
        )
    likeness = f"jaro_winkler_similarity(name, {quoted(name)})"
    query = (
        f"SELECT name FROM {'relations' if kind == 'relation' else 'entities'} WHERE {likeness} >= {MIN_LIKENESS} "
        f"ORDER BY {likeness} DESC, name LIMIT 1"
    )
    near = [] if engine is None else engine.run(query)
    hint = "".join(f"; did you mean {one_line(near_name)!r}?" for (near_name,) in near)
    raise DataError(
        f"{few} names that are not in {known.folder} ({counts.unknown_names}, for example {example}{hint}); "
        f"{known.advice}{order}",
        *warnings,
    )


def _first_unknown(buckets: Path, kinds: Collection[str] = ()) -> tuple[tuple[str, str], str]:
    """Return kind and name of the most frequent unknown name, and both in words; of these kinds, if there is one."""
    with (buckets / UNKNOWN).open(encoding="utf-8") as file:
        next(file)  # the header
        first = next(file)
        chosen = next((line for line in chain([first], file) if line.partition("\t")[0] in kinds), first)
    kind, _, rest = chosen.partition("\t")
    name = name_of(rest.rpartition("\t")[0] or rest)  # of a name that goes on in the next line: as far as it goes
    what, _, entity_type = kind.partition(":")
    of_type = f" of type {entity_type}" if entity_type else ""
    return (kind, name), f"{what} {one_line(name)!r}{of_type}"


def unknown_kinds(buckets: Path) -> list[str]:
    """Return which kinds of names a folder's `unknown.tsv` lists: `entity:TYPE` or `relation`; none without it."""
    path = buckets / UNKNOWN
    if not path.exists():
        return []
    with path.open(encoding="utf-8") as file:
        return sorted({line.partition("\t")[0] for line in islice(file, 1, None)})


def unknown_lines(rows: Iterable[tuple[str, str, int]]) -> Iterator[str]:
    """Yield the lines of `unknown.tsv`: kind, name and occurrences of what is unknown."""
    yield "what\tname\toccurrences\n"
    yield from (f"{kind}\t{cell_of(name)}\t{count}\n" for kind, name, count in rows)

"""Read files of labels of entities or relations. Every option and every folder that takes labels reads them here.

    id<TAB>label            in any order: DGL-KE, LibKGE (.del), OpenBioLink; what is between tabs is taken as it is.
                            DGL-KE's config.json may record another delimiter
    id<TAB>label, a header  by the rules of CSV, as pandas writes it: PyKEEN's entity_to_id.tsv.gz
    .csv                    the same with commas, with or without a header: OGB's mapping files
    a label per line        in the order of the ids

Files are UTF-8, plain or gzip.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from attrs import frozen

from pbgeval.errors import StorageError
from pbgeval.storage.entities import read_relation_names
from pbgeval.storage.json_files import read_object
from pbgeval.storage.text import LONE_RETURN, MAX_RATIO, is_lone_return, one_line, plural, text_lines

MAX_DIGITS = 18  # of an id: an int64 holds it
OF_ENTITIES = ("entities.tsv", "entity_to_id.tsv", "entity_ids.del", "entidx2name.csv", "nodeidx2entityid.csv")
OF_RELATIONS = ("relations.tsv", "relation_to_id.tsv", "relation_ids.del", "relidx2relname.csv", "reltype2relid.csv")
_RECORDED = "config.json"  # DGL-KE's arguments of training
_OTHER_DELIMITERS = (",", ";", "|")  # that DGL-KE takes, too

Entry: TypeAlias = tuple[int, int, str]  # line, id, label


def labels_beside(folder: Path, names: tuple[str, ...]) -> Path | None:
    """Return the first file of labels of some names that a folder has, packed or not."""
    return existing_file(folder, *(f"{name}{end}" for name in names for end in ("", ".gz")))


def labels_by_type(folder: Path, types: Sequence[str]) -> dict[str, Path]:
    """Return the files of entity labels that a folder has: of several types, `<type>_<name>` as in OGB's mappings."""
    found = {name: labels_beside(folder, tuple(f"{name}_{file}" for file in OF_ENTITIES)) for name in types}
    if len(types) == 1:
        found = {name: labels_beside(folder, OF_ENTITIES) or of_type for name, of_type in found.items()}
    return {name: file for name, file in found.items() if file is not None}


def has_labels(folder: Path) -> bool:
    """Tell whether a folder has a file of labels of entities or relations, or PyTorch-BigGraph's names of them."""
    files = [*OF_ENTITIES, *OF_RELATIONS, *(f"*_{name}" for name in OF_ENTITIES)]
    patterns = [
        "entity_names_*.json",
        "dynamic_rel_names.json",
        *(f"{name}{end}" for name in files for end in ("", ".gz")),
    ]
    return any(next(folder.glob(pattern), None) for pattern in patterns)


def relation_names_in(folder: Path, num_relations: int, *, with_labels: bool = True) -> list[str] | None:
    """Return the names of the relations that a folder has: PyTorch-BigGraph's, else those of a file of labels.

    Raises:
        StorageError: a file cannot be read, or has not one name per relation.
    """
    names, labels = read_relation_names(folder), labels_beside(folder, OF_RELATIONS)
    if names is None:
        return read_labels(labels, num_relations) if with_labels and labels is not None else None
    if len(names) != num_relations:
        raise StorageError(
            f"{folder / 'dynamic_rel_names.json'}: expected {num_relations} names, one per relation, found "
            f"{len(names)}; check that the names belong to this graph"
        )
    return names


def existing_file(folder: Path, *names: str) -> Path | None:
    """Return the first of the named files that exists in a folder."""
    return next((folder / name for name in names if name and os.path.isfile(folder / name)), None)


def read_labels(path: Path, num_labels: int | None = None) -> list[str]:
    """Return the labels in the order of their ids, whatever the order of the lines. No two are equal.

    Args:
        path: the file.
        num_labels: how many there must be; None: as many as there are.

    Raises:
        StorageError: it cannot be read, a line is of the wrong form, an id is missing, repeated or beyond the others,
            or a label is repeated; says which line.
    """
    return _by_id(path, num_labels, are_distinct=True)


def labels_in_order(path: Path, num_labels: int) -> Iterator[str]:
    """Yield the labels in the order of their ids, streaming if the file has that order. Some may be equal.

    Raises:
        StorageError: as `read_labels`, but for equal labels.
    """
    num_entries = 0
    for num_entries, (_, index, _) in enumerate(_entries(path), 1):
        if index != num_entries - 1 or index >= num_labels:
            yield from _by_id(path, num_labels, are_distinct=False)
            return
    if num_entries < num_labels:
        _by_id(path, num_labels, are_distinct=False)  # raises: its message is the same
    yield from (label for _, _, label in _entries(path))


def check_distinct(path: Path) -> None:
    """Refuse a file in which two ids have one label.

    Raises:
        StorageError: it has; says in which lines.
    """
    line_of: dict[str, int] = {}
    for number, _, label in _entries(path):
        if label in line_of:
            raise StorageError(
                f"{path}:{number}: expected each label once, found {one_line(label)!r} again, as in line "
                f"{line_of[label]}"
            )
        line_of[label] = number


_MAX_BEYOND = 1_000_000  # labels too many that are counted; a small file may have very many


def _by_id(path: Path, num_labels: int | None, *, are_distinct: bool) -> list[str]:
    labels: dict[int, str] = {}
    met: set[str] = set()
    num_beyond, beyond = 0, None  # the first id that there should not be
    for number, index, label in _entries(path):
        if num_labels is not None and index >= num_labels:
            num_beyond += 1
            beyond = index if beyond is None else beyond
            if num_beyond > _MAX_BEYOND:
                break
            continue
        if index in labels:
            raise StorageError(
                f"{path}:{number}: id {index} has a label already, in line {_line_of(path, index)}; give each id one"
            )
        labels[index] = label
        if are_distinct:
            if label in met:  # at once: a small file may hold one label any number of times
                check_distinct(path)
            met.add(label)
    met.clear()
    expected = len(labels) if num_labels is None else num_labels
    missing = next((index for index in range(expected) if index not in labels), None)
    beyond = next((index for index in labels if index >= expected), beyond)
    counted = "more than " if num_beyond > _MAX_BEYOND else ""
    counted += f"{plural(len(labels) + num_beyond, 'label')} for {plural(expected, 'id')}"
    counted += "" if missing is None else f", and none for id {missing}"
    if beyond is not None:
        raise StorageError(
            f"{path}:{_line_of(path, beyond)}: expected ids from 0 to {expected - 1}, found {beyond}; there are "
            f"{counted}"
        )
    if missing is not None:
        raise StorageError(f"{path}: {counted}")
    return [labels[index] for index in range(expected)]


def _line_of(path: Path, wanted: int) -> int:
    return next(number for number, index, _ in _entries(path) if index == wanted)


# A file -> its entries, in its order. What a line should be follows from the name and the first line.


@frozen
class _Form:
    delimiter: str | None  # between id and label; None: a line is a label
    is_csv: bool = False
    has_header: bool = False

    @property
    def expected(self) -> str:
        """What a line should be, for messages."""
        return "id<TAB>label" if self.delimiter == "\t" else f"id{self.delimiter}label"


def _entries(path: Path) -> Iterator[Entry]:
    form = _form_of(path)
    if form.delimiter is None:
        yield from _whole_lines(path)
        return
    for number, cells in _rows_of_csv(path, form.delimiter) if form.is_csv else _rows_of_text(path, form.delimiter):
        if form.has_header and number == 1:
            continue
        if len(cells) != 2 or not is_id(cells[0]):
            found = one_line(repr(form.delimiter.join(cells)))  # its tabs as \\t
            raise StorageError(f"{path}:{number}: expected {form.expected}, found {found}")
        yield number, int(cells[0]), cells[1]


def is_id(text: str) -> bool:
    """Tell whether a text is the number of a row."""
    return text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS


def _form_of(path: Path) -> _Form:
    first = next((line.rstrip("\r\n") for _, line in text_lines(path, keep_ends=True, max_ratio=MAX_RATIO)), "")
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if ".json" in suffixes:
        raise StorageError(f"{path}: expected lines of text, an id and a label or labels alone, not JSON")
    delimiter = _recorded_delimiter(path)
    if delimiter is not None:
        return _Form(delimiter)
    if ".csv" in suffixes:
        return _Form(",", is_csv=True, has_header=not first.partition(",")[0].strip('"').isdigit())
    cells = first.split("\t")
    if len(cells) == 2 and not any(cell.isdigit() for cell in cells) and ".del" not in suffixes:
        return _Form("\t", is_csv=True, has_header=True)
    return _Form("\t" if len(cells) > 1 or ".del" in suffixes else None)


def _recorded_delimiter(path: Path) -> str | None:
    """Return what DGL-KE's config.json says is between the columns of a file beside it; None if it says nothing."""
    config = path.parent / _RECORDED
    if not config.is_file() or not any(path.parent.glob("*_entity.npy")):
        return None
    arguments = read_object(config, "the arguments of a training")
    maps = (arguments.get(key) for key in ("emp_file", "emap_file", "rmap_file"))
    names = {*OF_ENTITIES[:1], *OF_RELATIONS[:1], *(Path(name).name for name in maps if isinstance(name, str))}
    delimiter = arguments.get("delimiter")
    return delimiter if isinstance(delimiter, str) and delimiter and path.name in names else None


def _rows_of_text(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    return ((number, line.split(delimiter)) for number, line in text_lines(path, max_ratio=MAX_RATIO) if line)


def _rows_of_csv(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (number of the first line, columns) of each row; a label in quotes may have several lines."""
    reader = csv.reader(
        (line for _, line in text_lines(path, keep_ends=True, max_ratio=MAX_RATIO)), delimiter=delimiter, strict=True
    )
    while True:
        number = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            quotes = "expected CSV, in which a label with quotation marks is in quotes and its own are doubled, found: "
            what = LONE_RETURN if is_lone_return(error) else f"{quotes}{error}"
            raise StorageError(f"{path}:{number}: {what}") from error
        if cells is None:
            return
        if cells:
            yield number, cells


def _whole_lines(path: Path) -> Iterator[Entry]:
    numbered = set(_OTHER_DELIMITERS)  # those that every line has behind its place, as an id
    number, first = 0, ""
    for number, line in text_lines(path, max_ratio=MAX_RATIO):
        if "\t" in line:
            raise StorageError(
                f"{path}:{number}: expected one label, without a tab, as in the lines before, found "
                + one_line(repr(line))
            )
        first = first or line
        numbered = {delimiter for delimiter in numbered if line.startswith(f"{number - 1}{delimiter}")}
        yield number, number - 1, line
    if number and numbered:
        raise StorageError(
            f"{path}:1: expected id<TAB>label or a label alone, found {one_line(first)!r}; put tabs between, or "
            "commas in a file called .csv"
        )

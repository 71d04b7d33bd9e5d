"""A result and the folders of its edges -> the counts of its queries as `save_ranks` kept them, block by block.

Everything is checked against the provenance: ranks files and edges of another run would give wrong numbers silently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from attrs import frozen

from pbgeval.errors import OVERWRITE, DataError, Faults, OutputError, StorageError
from pbgeval.metrics.breakdown_names import (
    ANSWER_DEGREE,
    ANSWER_HALF_LINK,
    BREAKDOWN_FILES,
    QUERY_DEGREE,
    QUERY_HALF_LINK,
)
from pbgeval.notation import ENDS, Bucket, Side, WorkUnit, grouped, window_units
from pbgeval.ranking.keys import CodeCounts, EdgeColumns, key_codes
from pbgeval.results.csv_tables import read_csv
from pbgeval.results.result import Result
from pbgeval.storage.edges import EdgeFiles, EdgeSource, edges_of_file, find_buckets, fingerprints_of
from pbgeval.storage.json_files import parse_json
from pbgeval.storage.row_files import RANK_COLUMNS, QueryFile, find_ranks, open_query_file
from pbgeval.storage.text import fingerprint, listed, read_small_text

ROWS_AT_A_TIME = 1 << 17
ROW_BITS = 36  # of an entity's row in its partition
MAX_ROWS = 1 << ROW_BITS  # of a partition, and
MAX_RELATIONS = 1 << 27  # of a graph, so that a (relation, row) is one int64


Places = tuple[tuple[str, int], ...]  # type and partition of what a key's rows are rows of


def in_places(of_schemas: Sequence[object], places: object, rel_E: np.ndarray) -> np.ndarray:
    """Return which edges have a type, or entities in places, bool (E,); `of_schemas`: by relation of the config."""
    if set(of_schemas) == {places}:
        return np.ones(len(rel_E), bool)
    return np.asarray(np.array([of_schema == places for of_schema in of_schemas])[rel_E])


@frozen
class RunFacts:
    """What the provenance says about a run."""

    digest: str
    filtered: bool
    headline: str
    hits_at: tuple[int, ...]
    sides: tuple[Side, ...]
    dynamic: bool
    featurized: bool  # a type that relations touch has features instead of rows
    schemas: tuple[tuple[str, str], ...]  # types at both sides of each relation of the config
    candidates: tuple[str, ...]  # of each relation of the config: all, partition, given or sampled
    knows_past_alone: bool  # `known_until`: of each query
    has_whole_lists: bool  # the ranks of a key's answers are places in one list
    num_partitions: Mapping[str, int]  # by entity type
    edge_paths: tuple[str, ...]  # last components
    edges: tuple[Mapping[Bucket, str], ...]  # fingerprint of each bucket's edges, by edge path
    training: tuple[Mapping[str, str], ...]  # the same of its training edges, buckets as text

    @classmethod
    def from_result(cls, result: Result) -> RunFacts:
        """Return what the provenance of a finished run says.

        Raises:
            OutputError: the run is not finished, or has no such provenance.
        """
        folder = folder_of(result)
        if not result.document.get("complete"):
            raise OutputError(f"{folder}: expected a finished run, found an unfinished one; evaluate again")
        try:
            return cls._from_document(result.document)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise OutputError(
                f"{folder / 'metrics.json'}: expected the provenance of an evaluation, got: {error!r}; evaluate again"
            ) from error

    @classmethod
    def _from_document(cls, document: Mapping[str, Any]) -> RunFacts:
        provenance, settings = document["provenance"], document["provenance"]["settings"]
        schemas = tuple((relation["lhs"], relation["rhs"]) for relation in settings["relations"])
        candidates = [relation["candidates"] for relation in settings["relations"]]
        knows_past_alone = settings.get("known_until") is not None
        is_partial = "sample" in document or settings["pbg_semantics"]
        disabled = {
            Side.LHS: settings["disable_lhs_negs"],
            Side.RHS: settings["disable_rhs_negs"],
            Side.REL: not settings.get("relation_prediction"),
        }
        return cls(
            digest=provenance["digest"],
            filtered=document["filter"] == "filtered",
            headline=document["headline"],
            hits_at=tuple(settings["hits_at"]),
            sides=tuple(side for side in Side if not disabled[side]),
            dynamic=settings["dynamic_relations"],
            featurized=any(settings["entities"][name]["featurized"] for schema in schemas for name in schema),
            schemas=schemas,
            candidates=tuple(candidates),
            knows_past_alone=knows_past_alone,
            has_whole_lists=settings.get("topk_metrics", False)
            or (
                document["filter"] == "filtered"
                and not is_partial
                and not knows_past_alone
                and {*candidates} <= {"all", "partition"}
            ),
            num_partitions={name: entity["num_partitions"] for name, entity in settings["entities"].items()},
            edge_paths=tuple(of_path["path"] for of_path in document["edge_paths"]),
            edges=tuple(
                {Bucket(*map(int, name.split("_"))): digest for name, digest in of_path.items()}
                for of_path in provenance["data"]["edges"]
            ),
            training=tuple(provenance["data"]["training"]),
        )

    @property
    def num_relations(self) -> int | None:
        """None where relations are dynamic: edges alone tell how many there are."""
        return None if self.dynamic else len(self.schemas)

    @property
    def ends(self) -> tuple[Side, ...]:
        """The sides that are ranked and of entities."""
        return tuple(side for side in self.sides if side.is_in("both"))

    def types(self, side: Side) -> list[str]:
        """Return the type at a side of each relation of the config: of all of them where they are dynamic."""
        return [side.pick(*schema) for schema in self.schemas]

    def places(self, hidden: Side, bucket: Bucket) -> list[Places]:
        """Return type and partition of the known entities of each relation of the config, in a bucket."""
        ends = ENDS if hidden is Side.REL else (hidden.other,)
        return [
            tuple(
                (name, bucket.partition_of(side, self.num_partitions[name]))
                for side, name in zip(ends, names, strict=True)
            )
            for names in zip(*map(self.types, ends), strict=True)
        ]

    @property
    def grid(self) -> list[Bucket]:
        """Every bucket, empty ones too."""
        extent = [max(self.num_partitions[name] for name in self.types(side)) for side in ENDS]
        return [Bucket(lhs, rhs) for lhs in range(extent[0]) for rhs in range(extent[1])]


@frozen(eq=False)
class SavedRun:
    """Ranks files, and edges where they are given, whose headers have been checked."""

    folder: Path  # the output directory
    facts: RunFacts
    ranks: Mapping[tuple[int, Bucket], QueryFile]
    edges: Mapping[tuple[int, Bucket], EdgeSource] | None
    kept: Callable[[WorkUnit], np.ndarray] | None = None  # which edges of a block count, bool (E,); None: all

    @classmethod
    def open(cls, result: Result, edge_paths: Sequence[Path] | None) -> SavedRun:
        """Open all headers.

        Args:
            result: of a finished run with an output directory.
            edge_paths: folders of the evaluated edges, in the order of the run; None: edges are not needed.

        Raises:
            OutputError: there are no ranks, or they are those of another run.
            StorageError: a file is missing, damaged, or not what the run evaluated; a line each.
        """
        folder, facts = folder_of(result), RunFacts.from_result(result)
        require_ranks(folder)
        ranks = _open_ranks(folder, facts)
        folders = None if edge_paths is None else [buckets_of(path, result) for path in edge_paths]
        return cls(folder, facts, ranks, None if folders is None else _open_edges(folders, facts, ranks))

    def open_training(self, paths: Sequence[Path]) -> Sequence[EdgeFiles]:
        """Open the headers of training edges: those of the run, if it had any.

        Raises:
            StorageError: a file is missing or damaged, or not what the run read.
        """
        extent = self.facts.grid[-1]
        opened = [find_buckets(path, extent.lhs + 1, extent.rhs + 1) for path in paths]
        if paths and self.facts.training and [fingerprints_of(files) for files in opened] != [*self.facts.training]:
            raise StorageError(
                f"train_paths: expected the training edges of the run, found others in {listed([*map(str, paths)])}; "
                "give its own, in its order"
            )
        return opened

    def row_ranges(self, window_rows: Callable[[int], int] | None = None) -> Iterator[WorkUnit]:
        """Yield all rows of all buckets, in blocks.

        Args:
            window_rows: number of a bucket's edges -> rows of its blocks; None: what is quick to read.
        """
        for (path_index, bucket), file in self.ranks.items():
            of_chunk = 1 if self.edges is None else self.edges[path_index, bucket].rows_per_chunk
            quick_rows = -(-ROWS_AT_A_TIME // of_chunk) * of_chunk  # a compressed file is unpacked chunk by chunk
            step = quick_rows if window_rows is None else window_rows(file.num_rows)
            yield from window_units(path_index, bucket, file.num_rows, step)

    def blocks_by_place(self, hidden: Side) -> dict[Places, list[WorkUnit]]:
        """Return the blocks that may have edges whose known entities are in each place."""
        return grouped(
            (places, rows)
            for rows in self.row_ranges()
            for places in dict.fromkeys(self.facts.places(hidden, rows.bucket))
        )

    def read_counts(self, rows: WorkUnit, side: Side) -> dict[str, np.ndarray]:
        """Return the columns of the queries that hide a side, int64 (E,), `num_candidates` 0 if not ranked or `kept`.

        Raises:
            StorageError: the file is damaged, or a query's counts contradict each other.
        """
        file = self.ranks[rows.path_index, rows.bucket]
        columns = file.read_side(side, rows.start, rows.stop)
        better, tied, candidates, known_better, known_tied, known = (columns[name] for name in RANK_COLUMNS)
        competing = np.maximum(candidates, 1) - 1  # all counts of a query that was not ranked are 0
        parts = (
            (better, competing),
            (tied, competing - better),
            (known, competing),
            (known_better, better),
            (known_tied, tied),
            (known - known_better - known_tied, competing - better - tied),
        )
        wrong = np.logical_or.reduce([candidates < 0, *((part < 0) | (part > whole) for part, whole in parts)])
        if wrong.any():
            at = int(np.argmax(wrong))
            found = ", ".join(f"{name} {int(values[at])}" for name, values in columns.items())
            raise StorageError(
                f"{file.path}: {side.label}, row {rows.start + at}: expected counts of a query, found {found}; the "
                "file is damaged: copy it or evaluate again"
            )
        return columns if self.kept is None else {**columns, "num_candidates": candidates * self.kept(rows)}

    def ranked(self, rows: WorkUnit) -> np.ndarray:
        """Return which edges count and were ranked on some side, bool (E,)."""
        file = self.ranks[rows.path_index, rows.bucket]
        names = [f"{side.label}/num_candidates" for side in self.facts.sides]
        is_ranked_E = np.any([of > 0 for of in file.read(names, rows.start, rows.stop).values()], axis=0)
        return np.asarray(is_ranked_E if self.kept is None else is_ranked_E & self.kept(rows))

    def read_edges(self, rows: WorkUnit) -> EdgeColumns:
        """Return the edges, whose entities are rows of their partitions, as the file has them.

        Raises:
            DataError: an id is out of range.
            StorageError: the file is damaged.
        """
        assert self.edges is not None, "a run that was opened without edges has none to read"
        return self.read_file(self.edges[rows.path_index, rows.bucket], rows.start, rows.stop)

    def read_file(self, file: EdgeSource, start: int, stop: int) -> EdgeColumns:
        """Return the same of any edges of the graph.

        Raises:
            DataError: an id is out of range.
            StorageError: the file is damaged.
        """
        edges = EdgeColumns(*file.read_ids(start, stop))
        lowest = -1 if self.facts.featurized else 0
        for name, id_E, low, high in (
            ("rel", edges.rel_n, 0, self.facts.num_relations or MAX_RELATIONS),
            ("lhs", edges.lhs_n, lowest, MAX_ROWS),
            ("rhs", edges.rhs_n, lowest, MAX_ROWS),
        ):
            wrong = np.flatnonzero((id_E < low) | (id_E >= high))
            if len(wrong):
                raise DataError(
                    f"{file.path}: dataset {name}, row {start + wrong[0]}: expected an id in 0..{high - 1}, "
                    f"found {id_E[wrong[0]]}; give the edges that were evaluated"
                )
        return edges

    def relation_names(self, num_relations: int) -> list[str]:
        """Return what relations.csv of the run calls the relations, for others their ids.

        Raises:
            OutputError: relations.csv is there and is not as it was written.
        """
        rows = read_csv(self.folder / BREAKDOWN_FILES["relation"])
        names = {row["relation_id"]: row["relation"] for row in rows}
        return [names.get(relation, str(relation)) for relation in range(num_relations)]


def require_ranks(folder: Path) -> None:
    """Refuse a result without ranks.

    Raises:
        OutputError: the output directory has none.
    """
    if not find_ranks(folder):
        raise OutputError(
            f"{folder}: this result has no ranks; evaluate again with save_ranks=True (-p save_ranks=True), and "
            f"{OVERWRITE}"
        )


def _open_ranks(folder: Path, facts: RunFacts) -> dict[tuple[int, Bucket], QueryFile]:
    files: dict[tuple[int, Bucket], QueryFile] = {}
    faults = Faults()
    for path_index, of_path in enumerate(facts.edges):
        for bucket in sorted(of_path):
            with faults.noted(StorageError):
                files[path_index, bucket] = file = open_query_file(folder, "ranks", path_index, bucket)
                if file.digest != facts.digest:
                    raise OutputError(
                        f"{file.path}: expected ranks of this run (digest {facts.digest[:8]}), found those of another "
                        f"(digest {file.digest[:8]}); read the result anew if it was overwritten, else evaluate again"
                    )
                if file.sides != facts.sides:
                    expected, found = (", ".join(side.label for side in sides) for sides in (facts.sides, file.sides))
                    faults.append(f"{file.path}: expected the sides {expected}, found {found}; evaluate again")
    faults.raise_any(StorageError)
    return files


def folder_of(result: Result) -> Path:
    """Return the output directory of a result.

    Raises:
        OutputError: it has none.
    """
    if result.path is None:
        raise OutputError(
            "this report has no output directory; evaluate with output=FOLDER, or use Report.read(FOLDER)"
        )
    return result.path


def buckets_of(path: Path, result: Result) -> Path:
    """Return the folder of evaluated edges: a path itself, or for a file of edges the buckets that the run made of it.

    Raises:
        StorageError: the run made no buckets of this file as it is now.
    """
    if not path.is_file():
        return path
    recorded = recorded_edges(result)
    for folder in recorded:
        if folder.name == path.name and made_of(folder.parent) == fingerprint(path):
            return folder
    if path.suffix == ".npy":  # edges that were in memory
        return path
    gone = next((of for of in recorded if of.name == path.name and not of.exists()), None)
    if gone is not None:
        raise StorageError(f"{path}: the run read its ids from {gone}, which is gone; copy that folder, too")
    where = f"; the run has read {listed([str(folder) for folder in recorded])}" if recorded else ""
    raise StorageError(
        f"{path}: no run has made buckets of this file as it is now; give the file or the folder that was evaluated"
        f"{where}"
    )


def recorded_edges(result: Result) -> list[Path]:
    """Return where a run found the evaluated edges, as far as its run.json says."""
    return [(result.path or Path()) / place for place in result.run.get("edge_paths") or ()]


def made_of(folder: Path) -> str | None:
    """Return the fingerprint of the file that a folder of `imported` was made of; None for another folder."""
    try:
        found = parse_json(read_small_text(folder / "import.json") or "null")
    except (StorageError, ValueError):
        return None
    return str(found["file"]) if isinstance(found, dict) and "file" in found else None


def _open_edges(
    edge_paths: Sequence[Path], facts: RunFacts, ranks: Mapping[tuple[int, Bucket], QueryFile]
) -> dict[tuple[int, Bucket], EdgeSource]:
    extent = facts.grid[-1]
    files: dict[tuple[int, Bucket], EdgeSource] = {}
    faults = Faults()
    for path_index, (path, expected) in enumerate(zip(edge_paths, facts.edges, strict=True)):
        with faults.noted():
            found, digests = _edges_there(path, extent, expected)
            unlike = [bucket for bucket in sorted({*digests, *expected}) if digests.get(bucket) != expected.get(bucket)]
            unlike = unlike or [of for of in found if found[of].num_edges != ranks[path_index, of].num_rows]
            if unlike:
                faults.append(
                    f"{path}: expected the edges that were evaluated as edge path {path_index} "
                    f"({facts.edge_paths[path_index]}), found others, or another form of them, in bucket "
                    f"({unlike[0].lhs}, {unlike[0].rhs}); give what was evaluated, in the order of the run"
                )
            files |= {(path_index, bucket): file for bucket, file in found.items()}
    faults.raise_any(StorageError)
    return files


def _edges_there(path: Path, extent: Bucket, expected: Mapping[Bucket, str]) -> tuple[EdgeFiles, Mapping[Bucket, str]]:
    """Open a folder of bucket files or a .npy file; return the edges and their fingerprints.

    Raises:
        StorageError: neither is there.
    """
    if not path.is_file():
        folder = find_buckets(path, extent.lhs + 1, extent.rhs + 1)
        return folder, {bucket: fingerprint(file.path) for bucket, file in folder.items()}
    if path.suffix != ".npy":
        raise StorageError(f"{path}: expected a folder of bucket files or a .npy file, the edges that were evaluated")
    file = edges_of_file(path)
    # Of edges that were in memory, the run knows the ids.
    digests = [file.fingerprint(), file.in_memory().fingerprint()]
    return {file.bucket: file}, {file.bucket: next((of for of in digests if of in expected.values()), digests[0])}


TRAINING_ROWS = 1 << 20  # that are read at a time


@frozen(eq=False)
class TrainingCounts:
    """How many training edges have the entities and half-links of the evaluated edges, a partition after another."""

    facts: RunFacts
    degrees: dict[tuple[str, int], CodeCounts]  # by type and partition: of entities, at either side
    half_links: dict[tuple[str, int, Side], CodeCounts]  # of (relation, entity at this side)

    @classmethod
    def count(
        cls,
        run: SavedRun,
        training: Sequence[EdgeFiles],
        further: Mapping[tuple[str, int, Side], np.ndarray],
    ) -> TrainingCounts:
        """Count; memory follows the distinct half-links of the evaluated edges, and further ones."""
        found = cls(run.facts, {}, {})
        evaluated = {slot for _, bucket in run.ranks for side in ENDS for slot in found._slots(side, bucket)}
        for slot in sorted(evaluated | {place[:2] for place in further}):
            for side in ENDS:
                blocks = (run.read_edges(of) for of in run.row_ranges() if slot in found._slots(side, of.bucket))
                codes = [further.get((*slot, side), np.empty(0, np.int64))]
                codes += (found._codes(slot, side, edges)[1] for edges in blocks)
                found.half_links[*slot, side] = CodeCounts.zeros(np.concatenate(codes))
            found.degrees[slot] = CodeCounts.zeros(
                np.concatenate([found.half_links[*slot, side].keys % MAX_ROWS for side in ENDS])
            )
            for file in (file for files in training for file in files.values()):
                sides = [side for side in ENDS if slot in found._slots(side, file.bucket)]
                for start in range(0, file.num_edges if sides else 0, TRAINING_ROWS):
                    edges = run.read_file(file, start, min(start + TRAINING_ROWS, file.num_edges))
                    for side in sides:
                        _, half_links = found._codes(slot, side, edges)
                        found.half_links[*slot, side].count(half_links)
                        found.degrees[slot].count(half_links % MAX_ROWS)
        return found

    def _slots(self, side: Side, bucket: Bucket) -> set[tuple[str, int]]:
        return {(name, bucket.partition_of(side, self.facts.num_partitions[name])) for name in self.facts.types(side)}

    def _codes(self, slot: tuple[str, int], side: Side, edges: EdgeColumns) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions of the edges whose entity at a side is of a slot's type, and their half-links."""
        at = np.flatnonzero(in_places(self.facts.types(side), slot[0], edges.rel_n))
        return at, key_codes(edges.rel_n[at], edges.entity(side)[at], MAX_ROWS)

    def of(self, hidden: Side, bucket: Bucket, edges: EdgeColumns) -> dict[str, np.ndarray]:
        """Return in how many training edges the queries that hide a side have each measure, int64 (E,)."""
        names = {hidden: (ANSWER_DEGREE, ANSWER_HALF_LINK), hidden.other: (QUERY_DEGREE, QUERY_HALF_LINK)}
        counts = {name: np.zeros(edges.num_edges, np.int64) for of_side in names.values() for name in of_side}
        for side, (degree, half_link) in names.items():
            for slot in self._slots(side, bucket):
                at, codes = self._codes(slot, side, edges)
                counts[degree][at] = self.degrees[slot].of(codes % MAX_ROWS)
                counts[half_link][at] = self.half_links[*slot, side].of(codes)
        return counts

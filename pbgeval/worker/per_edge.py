"""Counts and best candidates of queries -> the files that hold them edge by edge (`save_ranks`, `save_topk`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
from attrs import field, frozen

from pbgeval.errors import StorageError
from pbgeval.inputs.names import names_of_type, relation_labels
from pbgeval.inputs.opening import Inputs
from pbgeval.notation import Bucket
from pbgeval.stats.groups import GroupKey
from pbgeval.stats.ranks import QueryCounts
from pbgeval.storage.edges import EdgeSource
from pbgeval.storage.entities import EntityLabels
from pbgeval.storage.row_files import QueryFile, create_query_file, open_query_file
from pbgeval.storage.topk import Vocabulary, write_topk_table
from pbgeval.worker.context import WorkerContext

Files: TypeAlias = dict[tuple[int, Bucket], QueryFile]  # by edge path and bucket


@frozen(eq=False)
class PerEdgeFiles:
    """The per-edge files of a run that this worker writes to."""

    ranks: Files  # empty: not asked for
    topk: Files  # of the best candidates; empty: not asked for
    filtered: bool  # known answers are counted
    _unsynced: set[tuple[int, Bucket]] = field(factory=set, init=False)  # counts that were written

    def write_counts(self, key: GroupKey, row_Q: np.ndarray, counts: QueryCounts) -> None:
        """Write the counts of some queries of a bucket, in any order of rows.

        Raises:
            OutputError: the file cannot be written.
        """
        file = self.ranks.get((key.path_index, key.bucket))
        if file is None or not len(row_Q):
            return
        raw, known = counts.raw, counts.known
        columns = {"better": raw.better_Q, "tied": raw.tied_Q, "num_candidates": raw.num_competitors_Q + 1}
        if self.filtered:  # else these are 0, as a file is from its beginning
            excluded = known.better_Q, known.tied_Q, known.num_competitors_Q
            columns |= dict(zip(("excluded_better", "excluded_tied", "num_excluded"), excluded, strict=True))
        values = {f"{key.side.label}/{name}": of.numpy() for name, of in columns.items()}
        if not bool((row_Q[1:] > row_Q[:-1]).all()):
            order = np.argsort(row_Q)
            row_Q, values = row_Q[order], {name: of[order] for name, of in values.items()}
        self._unsynced.add((key.path_index, key.bucket))
        file.write(row_Q, values)

    def write_best(self, key: GroupKey, row_Q: np.ndarray, best: Mapping[str, np.ndarray]) -> None:
        """Write the best candidates of some queries of a bucket, rows ascending.

        Raises:
            OutputError: the file cannot be written.
        """
        if len(row_Q):
            self.topk[key.path_index, key.bucket].write_side(key.side, row_Q, best)

    def sync(self) -> None:
        """Wait until all counts that this worker has written are on the disk.

        Raises:
            OutputError: they cannot be written.
        """
        for place in self._unsynced:
            self.ranks[place].sync()
        self._unsynced.clear()

    def finish(self, context: WorkerContext) -> None:
        """Wait until everything is on the disk, and write tables of it; every worker takes part."""
        with context.collectively():
            self.sync()
            for topk in self.topk.values():
                topk.sync()
        with context.collectively():
            self._write_tables(context)

    def _write_tables(self, context: WorkerContext) -> None:
        """Write the best candidates as tables with names, a part of the files on each worker."""
        files = sorted(self.topk.items())
        if not files:
            return
        config, inputs = context.inputs.config, context.inputs
        sizes = {key: file.num_rows for key, file in inputs.embeddings.items()}
        num_partitions = {name: config.entities[name].num_partitions for name in config.used_entity_types}
        of_model = partial(_names_of_type, inputs) if _has_own_names(inputs) else None
        vocabulary = Vocabulary(
            EntityLabels(Path(config.entity_path), sizes, of_model=of_model),
            relation_labels(config, inputs.num_relations, inputs.model),
            [(relation.lhs, relation.rhs) for relation in config.relations],
            num_partitions,
        )
        for (path_index, bucket), file in files[context.team.rank_in_team :: context.team.size]:
            write_topk_table(file, inputs.buckets[path_index][bucket], vocabulary, by_time=inputs.asks_by_time)


def _has_own_names(inputs: Inputs) -> bool:
    """Tell whether `names_of_type` has what tables call entities: types are of one partition."""
    return {inputs.config.entities[name].num_partitions for name in inputs.config.used_entity_types} == {1}


def _names_of_type(inputs: Inputs, entity_type: str) -> Iterable[str] | None:
    return names_of_type(inputs.config, inputs.model, entity_type, inputs.embeddings[entity_type, 0].num_rows)


def open_per_edge_files(context: WorkerContext) -> PerEdgeFiles:
    """Make the files that the config asks for, and open them on every worker; every worker takes part.

    Where the journal holds units, files of ranks hold their rows already, and are kept. Should one be missing, all are
    computed again: which rows it had cannot be told from the sums in the entries.
    """
    config, folder, digest = context.inputs.config, context.work.output, context.work.digest
    sides, ends, k = context.settings.sides, context.settings.ends, config.save_topk
    saves_ranks = context.work.protocol.saves_ranks
    check = context.journal.journal.check

    def create() -> tuple[Files, Files]:
        for name in context.inputs.config.used_entity_types if k is not None and _has_own_names(context.inputs) else ():
            deque(_names_of_type(context.inputs, name) or (), maxlen=0)  # faults of labels, before anything is ranked
        keeps = saves_ranks and not context.work.protocol.sweeps  # sweeps write at their end
        entries = context.journal.journal.entries() if keeps else []
        files = {(path_index, bucket): file for path_index, bucket, file in context.inputs.files}
        kept = {place: _kept(folder, place[0], file, digest) if entries else None for place, file in files.items()}
        ranks = {
            place: kept[place] or create_query_file(folder, "ranks", *place, file.num_edges, sides, digest, check)
            for place, file in (files if saves_ranks else {}).items()
        }
        topk = {
            place: create_query_file(folder, "topk", *place, file.num_edges, ends, digest, check, k=k)
            for place, file in (files if k is not None else {}).items()
        }
        if entries and None in kept.values():
            context.work.observer.warn(f"{folder}: files of ranks are missing, so all units are computed again")
            for entry in entries:
                context.journal.journal.remove(entry)
        return ranks, topk

    with context.collectively():
        made = create() if context.team.rank_in_team == 0 else None
    return PerEdgeFiles(*context.team.broadcast_object(made), context.work.protocol.filtered)


def _kept(folder: Path, path_index: int, edges: EdgeSource, digest: str) -> QueryFile | None:
    """Return the file of a bucket's ranks, if it is there and of this run."""
    try:
        found = open_query_file(folder, "ranks", path_index, edges.bucket)
    except StorageError:
        return None
    return found if found.digest == digest and found.num_rows == edges.num_edges else None

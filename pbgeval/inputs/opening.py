"""`EvalConfig` -> every file that the evaluation will read, its header checked before any worker starts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any, ParamSpec, TypeAlias

import numpy as np
import torch
from attrs import evolve, field, frozen
from torch import Tensor

from pbgeval.config import EvalConfig, check_config
from pbgeval.config.loading import SCORER, ModelForm
from pbgeval.errors import (
    ConfigError,
    DataError,
    Faults,
    MismatchError,
    ScorerError,
    StorageError,
)
from pbgeval.inputs.model import (
    difference_from_training,
    is_dynamic_in_training,
    read_relations,
    relation_of_scorer,
    relations_of_model,
)
from pbgeval.inputs.names import Restrictions, read_restrictions
from pbgeval.models.model import EmbeddingModel, part_of
from pbgeval.notation import Bucket, EntityNumbering, Side, T
from pbgeval.ranking.settings import Relation
from pbgeval.scoring.block_scorer import NO_TIMES, NUM_CHECKED, Scorer, name_of, takes_time
from pbgeval.scoring.full_precision import CallerSettings
from pbgeval.storage.arrays import NumberRows, Table
from pbgeval.storage.candidates import CandidateFile, find_candidate_files
from pbgeval.storage.checkpoint import PartitionRows, open_embeddings
from pbgeval.storage.checkpoint_paths import read_checkpoint_version
from pbgeval.storage.edges import FORM_WITH_TIME, Array, ArrayEdges, Edges, EdgeSource, edges_of_file, find_buckets
from pbgeval.storage.entities import read_dynamic_relation_count, read_entity_count
from pbgeval.storage.left_out import LeftOut
from pbgeval.storage.names_digests import NAMES_DIGESTS, NamesDigests
from pbgeval.storage.text import is_url, names_file_of_edges

P = ParamSpec("P")
Model: TypeAlias = EmbeddingModel | Scorer


@frozen
class Inputs:
    """Checked headers; small and picklable, so that each worker gets a copy."""

    config: EvalConfig
    checkpoint_version: int
    num_relations: int  # as the ids in edge files have them
    buckets: tuple[dict[Bucket, EdgeSource], ...]  # of each edge path; empty buckets are absent
    embeddings: Mapping[tuple[str, int], PartitionRows] = field(repr=False)  # by entity type and partition
    # Of all entities that relations may touch; of rows of features for featurized types.
    numbering: EntityNumbering = field(repr=False)
    known: Mapping[str, dict[Bucket, EdgeSource]] = field(factory=dict)  # of each of filter_paths and train_paths
    model: Model | None = field(default=None, repr=False)  # in place of a checkpoint
    restrictions: Restrictions = field(factory=Restrictions, repr=False)
    candidate_files: tuple[dict[Bucket, CandidateFile], ...] = ()  # of each edge path, where candidates are given
    left_out: Mapping[str, LeftOut] = field(factory=dict)  # by path of edges, where an import has left out some

    @property
    def training_buckets(self) -> list[dict[Bucket, EdgeSource]]:
        """The buckets of `train_paths`."""
        return [self.known[path] for path in dict.fromkeys(self.config.train_paths)]

    @property
    def candidates(self) -> set[str]:
        """The candidate policies of the relations: sampled, partition, all."""
        return {self.config.candidates_of(relation) for relation in self.config.relations}

    @property
    def featurized(self) -> bool:
        """Whether a type that relations touch is featurized."""
        return any(self.config.entities[name].featurized for name in self.config.used_entity_types)

    @property
    def files(self) -> Iterator[tuple[int, Bucket, EdgeSource]]:
        """Yield (edge path's index, bucket, file) of all evaluated edges, in order."""
        return (
            (path_index, bucket, file)
            for path_index, files in enumerate(self.buckets)
            for bucket, file in sorted(files.items())
        )

    def edges_in_memory(self) -> dict[int, ArrayEdges]:
        """Return the evaluated edges that no file holds as they are ranked, by index of their edge path."""
        return {
            path_index: file
            for path_index, _, file in self.files
            if isinstance(file, ArrayEdges) and file.array_E3 is not None
        }

    @cached_property
    def num_edges(self) -> int:
        return sum(file.num_edges for files in self.buckets for file in files.values())

    @property
    def scorer(self) -> Scorer | None:
        """The model that is asked for scores by number, if it is one."""
        return None if self.model is None or isinstance(self.model, EmbeddingModel) else self.model

    @property
    def is_sample(self) -> bool:
        """Whether fewer edges may be evaluated than there are."""
        config = self.config
        return config.target_error is not None or (config.sample_edges or self.num_edges) < self.num_edges

    @property
    def takes_time(self) -> bool:
        """Whether the model gets the times of queries."""
        return takes_time(self.model)

    @property
    def asks_by_time(self) -> bool:
        """Whether queries of different times are different queries: of their own scores or known answers."""
        return self.takes_time or self.config.known_until is not None

    @property
    def uses_time(self) -> bool:
        """Whether evaluated edges need times."""
        return self.takes_time or self.config.uses_time

    def some_times(self) -> Tensor:
        """Return the times of the first evaluated edges, int64; one 0 where there are none."""
        file = next((file for _, _, file in self.files if file.num_edges), None)
        times = None if file is None else file.read(0, min(file.num_edges, NUM_CHECKED)).time
        return NO_TIMES if times is None else times

    def read_relations(
        self, device: torch.device, caller_settings: CallerSettings
    ) -> tuple[tuple[Relation, ...], dict[str, Tensor]]:
        """Read the model: a relation per entry of the config, and the global embeddings.

        A model of the caller's own is asked for scores under the caller's settings of torch.

        Raises:
            StorageError: a file has become unreadable.
            DataError: a parameter is not finite.
        """
        if self.scorer is not None:
            return (relation_of_scorer(self.config, self.scorer, caller_settings),), {}
        if isinstance(self.model, EmbeddingModel):
            return relations_of_model(self.config, self.model, device), {}
        return read_relations(self.config, self.checkpoint_version, self.num_relations, device)

    def partition_of(self, entity_type: str, side: Side, bucket: Bucket) -> int:
        """Return the partition of a type in a bucket."""
        return bucket.partition_of(side, self.config.entities[entity_type].num_partitions)

    def partitions_at(self, side: Side, bucket: Bucket) -> list[tuple[str, int]]:
        """Return (entity type, partition) at a side of the bucket's edges, of each relation of the config."""
        types = (side.pick(relation.lhs, relation.rhs) for relation in self.config.relations)
        return [(name, self.partition_of(name, side, bucket)) for name in types]

    @cached_property
    def _type_pairs(self) -> list[tuple[str, str]]:
        """The types at both ends of edges, each pair once: there may be very many relations."""
        return list(dict.fromkeys((relation.lhs, relation.rhs) for relation in self.config.relations))

    def places_of_edges(self, bucket: Bucket) -> list[tuple[tuple[str, int], tuple[str, int]]]:
        """Return (entity type, partition) at both ends of the bucket's edges, each pair of them once."""
        return [
            ((lhs, self.partition_of(lhs, Side.LHS, bucket)), (rhs, self.partition_of(rhs, Side.RHS, bucket)))
            for lhs, rhs in self._type_pairs
        ]

    def partitions_needed(self, bucket: Bucket) -> frozenset[tuple[str, int]]:
        """Return (entity type, partition) of all that the bucket's edges may touch."""
        return frozenset(chain.from_iterable(self.places_of_edges(bucket)))


EDGE_PATHS = ("edge_paths", "filter_paths", "train_paths")  # keys


def edge_paths(config: EvalConfig) -> list[str]:
    """Return all paths of edges, each once: those that are evaluated first."""
    return list(dict.fromkeys([*config.edge_paths, *config.filter_paths, *config.train_paths]))


def files_of_edges(config: EvalConfig) -> list[Path]:
    """Return each file of text or Parquet among the paths of edges once, those that are evaluated first."""
    return [Path(path) for path in edge_paths(config) if names_file_of_edges(path) and os.path.isfile(path)]


def with_edge_paths(config: EvalConfig, change: Callable[[str], str | None], **others: Any) -> EvalConfig:  # noqa: ANN401 - settings
    """Return a config with other paths of edges, without those that become None, and with other settings."""
    for key in EDGE_PATHS:
        others[key] = [path for path in map(change, getattr(config, key)) if path is not None]
    return evolve(config, **others)


def grid(config: EvalConfig) -> Bucket:
    """Return the number of partitions on either side of the grid of buckets."""
    return Bucket(
        max(config.entities[relation.lhs].num_partitions for relation in config.relations),
        max(config.entities[relation.rhs].num_partitions for relation in config.relations),
    )


def open_inputs(
    config: EvalConfig, model: Model | None = None, edges: Mapping[str, ArrayEdges] | None = None
) -> Inputs:
    """Open every header.

    Args:
        config: checked.
        model: in memory, in place of what the config names.
        edges: in memory, by the names that the config's paths have.

    Raises:
        EvalError: all faults of all files, a line each.
    """
    faults = Faults()
    if model is None and config.model is not None:
        model = _collect(faults, _open_model, Path(config.model), config)

    def opened_edges(path: str) -> dict[Bucket, EdgeSource]:
        return _collect(faults, _open_edges, config, path, (edges or {}).get(path), model) or {}

    buckets = tuple(opened_edges(path) for path in config.edge_paths)
    known = {path: opened_edges(path) for path in dict.fromkeys([*config.filter_paths, *config.train_paths])}
    left_out = {
        path: _collect(faults, _left_out, config, path) for path in edge_paths(config) if path not in (edges or {})
    }
    given: tuple[dict[Bucket, CandidateFile], ...] | None = ()
    if config.candidate_path is not None:
        given = _collect(faults, find_candidate_files, Path(config.candidate_path), buckets, config.sides)
    opened: _Opened | None = None
    if model is not None:
        opened = _of_model(config, model)
    elif config.model is None:
        opened = _of_checkpoint(config, faults)
    if faults or opened is None:
        raise StorageError(*faults)
    version, num_relations, embeddings = opened
    numbering = EntityNumbering.from_sizes({key: rows.num_rows for key, rows in embeddings.items()})
    return Inputs(
        config,
        version,
        num_relations,
        buckets,
        embeddings,
        numbering,
        known,
        model,
        restrictions=read_restrictions(config, numbering, num_relations, model),
        candidate_files=given or (),
        left_out={path: found for path, found in left_out.items() if found is not None},
    )


# Headers of a model: version, number of relations, embeddings by entity type and partition.
_Opened: TypeAlias = tuple[int, int, Mapping[tuple[str, int], PartitionRows]]


def _of_model(config: EvalConfig, model: Model) -> _Opened:
    """Cut the partitions of a model."""
    if (
        config.relation_prediction
        and not isinstance(model, EmbeddingModel)
        and not getattr(model, "scores_relations", False)
    ):
        raise ConfigError(
            f"relation_prediction: {name_of(model)} scores no relations; set it to False, or give the scorer an"
            " attribute scores_relations = True and scores for Side.REL"
        )
    if config.topk_metrics and takes_time(model):
        raise ConfigError("topk_metrics: needs lists that are the same at all times, but the scorer takes times")
    types = config.used_entity_types
    tables: Mapping[str, Table] = (
        model.tables_of(types)
        if isinstance(model, EmbeddingModel)
        else dict.fromkeys(types, NumberRows(model.num_entities, dimension=1))
    )
    return (
        0,
        (len(config.relations) if not config.dynamic_relations else model.num_relations),
        {
            (name, index): table.part(*part_of(table.num_rows, index, config.entities[name].num_partitions))
            for name, table in tables.items()
            for index in range(config.entities[name].num_partitions)
        },
    )


def _of_checkpoint(config: EvalConfig, faults: Faults) -> _Opened | None:
    num_relations: int | None = len(config.relations)
    if config.dynamic_relations:
        told = " (the checkpoint's config.json has false)" if is_dynamic_in_training(config) is False else ""
        num_relations = _collect(faults, read_dynamic_relation_count, Path(config.entity_path), told)
    folder, entity_path = Path(config.checkpoint_path), Path(config.entity_path)
    version = _collect(faults, read_checkpoint_version, folder)
    if version is None:
        return None
    _collect(faults, _check_names, config)
    mismatches: list[Faults] = []  # of each entity type, and of the relations
    embeddings: dict[tuple[str, int], PartitionRows] = {}
    for name in config.used_entity_types:
        mismatches.append(Faults())
        for partition in range(config.entities[name].num_partitions):
            with faults.noted(), mismatches[-1].noted(MismatchError):
                embeddings[name, partition] = open_embeddings(
                    folder,
                    name,
                    partition,
                    version,
                    dimension=config.dimension_of(name),
                    num_rows=read_entity_count(entity_path, name, partition),
                )
    if num_relations is not None:
        mismatches.append(Faults())
        with faults.noted(), mismatches[-1].noted(MismatchError):
            read_relations(config, version, num_relations)
    faults += _disagreement(config, mismatches)
    return None if num_relations is None else (version, num_relations, embeddings)


def _check_names(config: EvalConfig) -> None:
    """Refuse folders whose import gave other numbers to entities or relations than that of the checkpoint.

    Raises:
        StorageError: a line for each folder.
    """
    ours = NamesDigests.read(Path(config.checkpoint_path))
    if ours is None:
        return
    faults = Faults()
    for path in dict.fromkeys([config.entity_path, *filter(None, [config.dictionary_path]), *edge_paths(config)]):
        with faults.noted():
            theirs = NamesDigests.read(Path(path))
            what = None if theirs is None else ours.difference(theirs, config.used_entity_types)
            if what is not None:
                raise StorageError(
                    f"{path}: this folder is of another import than {config.checkpoint_path}: it numbers {what} "
                    f"differently ({NAMES_DIGESTS}); use the folders that were made together, or import again"
                )
    if faults:
        raise StorageError(*faults)


def _disagreement(config: EvalConfig, mismatches: Sequence[Sequence[str]]) -> list[str]:
    """Return what does not fit; of many lines one per entity type and one for the relations, below a heading."""
    lines = [line for group in mismatches for line in group]
    if len(lines) <= 1:
        return lines
    folder = config.checkpoint_path
    grouped = [
        group[0] + (f" (and {len(group) - 1} more like this)" if group[1:] else "") for group in mismatches if group
    ]
    heading = f"{folder}: config and checkpoint disagree; is this the checkpoint that the config describes?"
    below = [*difference_from_training(config), *grouped]
    return [heading, *(f"  {line.removeprefix(f'{folder}/')}" for line in below)]


def needs_time(config: EvalConfig, path: str, model: Model | None = None) -> bool | None:
    """Return whether the edges of a path must have times; None: they may, and leaks are told by them."""
    of_evaluated = config.uses_time or takes_time(model)
    if config.filters_by_time or (of_evaluated and path in config.edge_paths):
        return True
    return None if of_evaluated and path in config.train_paths else False


def _open_edges(
    config: EvalConfig, path: str, given: ArrayEdges | None, model: Model | None
) -> dict[Bucket, EdgeSource]:
    """Open a folder of bucket files, or the edges of a graph in one partition: a file, or given in memory.

    Raises:
        StorageError: they are not there, or of another form.
        DataError: they lack times, a file that is evaluated has none, or the model has no such entity.
    """
    extent = grid(config)
    with_time = needs_time(config, path, model)
    if given is None and Path(path).is_dir():
        return {**find_buckets(Path(path), extent.lhs, extent.rhs, with_time=with_time)}
    partitioned = (
        f"{path}: edges in memory need num_partitions = 1"
        if given is not None
        else f"{path}: entities have partitions, which need a folder of bucket files; set num_partitions = 1, "
        "or convert model and edges with kgeval-dist import-model"
    )
    if extent != (1, 1):
        raise StorageError(partitioned)
    edges = edges_of_file(Path(path)) if given is None else given
    is_empty = given is None and path in config.edge_paths and not edges.num_edges  # as for files of edges by name
    if is_empty:
        raise DataError(f"{path}: there are no edges in this file")
    if with_time and not edges.has_time:
        raise DataError(f"{edges.path}: expected {FORM_WITH_TIME}, got no fourth column; add the times")
    if isinstance(model, EmbeddingModel) and model.rows_of_ids:
        edges = evolve(edges, array_E3=numbered_by_rows(edges, model))
    return {edges.bucket: edges}


def _left_out(config: EvalConfig, path: str) -> LeftOut | None:
    """Return what an import has left out of a folder of edges.

    Raises:
        DataError: it is evaluated, and the config does not accept that.
    """
    found = LeftOut.read(Path(path))
    if found is not None and path in config.edge_paths and config.unknown == "refuse":
        raise DataError(
            f"{path}: the import left out {found.num_left_out:,} of {found.num_read:,} edges ({found.unknown_names}, "
            "listed in unknown.tsv there), so the figures would be those of other edges; import them with the names "
            "that they have, or accept it with unknown='skip' (-p unknown=skip)"
        )
    return found


def numbered_by_rows(edges: ArrayEdges, model: EmbeddingModel) -> np.ndarray:
    """Return edges (E, 3 or 4) whose entities are rows of the model's tables, not numbers of the model's system.

    Raises:
        DataError: the model has no such entity.
        StorageError: the file is gone or damaged.
    """
    block = edges.read(0, edges.num_edges)
    times = [] if block.time is None else [block.time]
    array_E3 = torch.stack([block.lhs, block.rel, block.rhs, *times], dim=1).numpy()
    for column in (0, 2):
        ids_E = array_E3[:, column].copy()
        for entity_type, rows_of in model.rows_of_ids.items():
            of_type = [index for index, one in enumerate(model.relation_types) if one[1 + column // 2] == entity_type]
            rows_E = np.flatnonzero(np.isin(array_E3[:, 1], of_type))
            array_E3[rows_E, column] = rows_of(ids_E[rows_E])
        wrong = np.flatnonzero(array_E3[:, column] < 0)
        if wrong.size:
            raise DataError(
                f"{edges.path}: edge {wrong[0]}: the model has no node {ids_E[wrong[0]]} of the type that relation "
                f"{array_E3[wrong[0], 1]} has there; check the edges"
            )
    return array_E3


def _collect(faults: Faults, action: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T | None:
    with faults.noted():
        return action(*arguments, **named)
    return None


# A model or edges in memory, as if they had been read from files.

GivenModel: TypeAlias = EmbeddingModel | Scorer | str | PathLike[str]


@frozen(eq=False)
class InMemory:
    """A config that is checked together with a model or edges in memory."""

    config: EvalConfig
    model: Model | None  # in place of what the config names
    edges: Mapping[str, ArrayEdges]  # by the names that the config's paths have

    def open(self, config: EvalConfig | None = None) -> Inputs:
        """Open every header, with other paths of edges if a config is given.

        Raises:
            EvalError: all faults, a line each.
        """
        return open_inputs(config or self.config, self.model, self.edges)


def check_in_memory(config: EvalConfig, model: GivenModel | None, edges: Edges | Array | None) -> InMemory:
    """Check the config together with a model or edges in memory.

    Args:
        config: not checked yet.
        model: replaces the model that the config names; None: use the config's.
        edges: replace the edges that the config names; None: use the config's.

    Raises:
        EvalError: all faults, a line each.
    """
    opened = None if model is None else _checked_model(model, config)
    given = edges if edges is None or isinstance(edges, Edges) else Edges(edges)
    by_key: Mapping[str, Mapping[str, ArrayEdges]] = {} if given is None else given.by_name()
    is_function = opened is not None and not isinstance(opened, EmbeddingModel)
    form = SCORER if is_function else None
    if isinstance(opened, EmbeddingModel):
        form = ModelForm.from_model(opened, config.entity_path or config.dictionary_path)
    checked = check_config(config, form, by_key)
    for path in (checked.entity_path, checked.checkpoint_path, *edge_paths(checked)):
        if is_url(path):
            raise ConfigError(f"{path}: URLs do not work together with a model or edges in memory; copy the files here")
    return InMemory(checked, opened, {name: array for of_key in by_key.values() for name, array in of_key.items()})


def _open_model(path: Path, config: EvalConfig) -> EmbeddingModel:
    """Open a model of another system. Its readers are imported only here: most runs read PyTorch-BigGraph's files."""
    from pbgeval.models.opening import open_model

    return open_model(path, config.model_options, trust_pickle=config.trust_pickle)


def _checked_model(model: GivenModel, config: EvalConfig) -> Model:
    if isinstance(model, EmbeddingModel):
        return model
    if isinstance(model, str | PathLike):
        return _open_model(Path(model), config)
    for name in ("num_entities", "num_relations", "scores"):
        if not hasattr(model, name):
            raise ScorerError(
                f"model: expected a path, or an object with num_entities, num_relations and scores, got "
                f"{type(model).__name__} without {name}; edge_scorer or batch_scorer make one of a function or module"
            )
    sizes = {name: getattr(model, name) for name in ("num_entities", "num_relations")}
    for name, found in sizes.items():
        if not isinstance(found, int) or isinstance(found, bool) or found < 1:
            raise ScorerError(f"{type(model).__name__}.{name}: expected an int >= 1, got {found!r}")
    return model

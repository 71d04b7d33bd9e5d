"""`EvalConfig` -> every file that the evaluation will read, its header checked before any worker starts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import ParamSpec, TypeVar

from attrs import evolve, field, frozen

from pbgeval.config import EvalConfig
from pbgeval.errors import EvalError, StorageError
from pbgeval.inputs.model import read_relations
from pbgeval.inputs.relation_names import relation_groups
from pbgeval.inputs.restrictions import Restrictions, read_restrictions
from pbgeval.notation import Bucket, EntityNumbering, Side, WorkUnit
from pbgeval.storage.candidates import CandidateFile, find_candidate_files
from pbgeval.storage.checkpoint import (
    EmbeddingFile,
    embedding_path,
    model_path,
    open_embeddings,
    read_checkpoint_version,
)
from pbgeval.storage.edges import BucketFile, find_buckets
from pbgeval.storage.entities import read_dynamic_relation_count, read_entity_count
from pbgeval.storage.fingerprint import fingerprint

P = ParamSpec("P")
T = TypeVar("T")


@frozen
class Inputs:
    """Checked headers; small and picklable, so that each worker gets a copy."""

    config: EvalConfig
    checkpoint_version: int
    num_relations: int  # as the ids in edge files have them
    buckets: tuple[dict[Bucket, BucketFile], ...]  # of each edge path; empty buckets are absent
    embeddings: dict[tuple[str, int], EmbeddingFile] = field(repr=False)  # by entity type and partition
    known_paths: tuple[str, ...] = ()  # filter_paths and train_paths, each once
    known_buckets: tuple[dict[Bucket, BucketFile], ...] = ()  # of each known path
    restrictions: Restrictions = field(factory=Restrictions, repr=False)
    candidate_files: tuple[dict[Bucket, CandidateFile], ...] = ()  # of each edge path, where candidates are given

    @property
    def numbering(self) -> EntityNumbering:
        """The numbers of all entities that relations may touch; rows of features for featurized types."""
        return EntityNumbering.of_sizes({key: file.num_rows for key, file in self.embeddings.items()})

    @property
    def training_buckets(self) -> list[dict[Bucket, BucketFile]]:
        """The buckets of `train_paths`."""
        of_path = dict(zip(self.known_paths, self.known_buckets, strict=True))
        return [of_path[path] for path in dict.fromkeys(self.config.train_paths)]

    @property
    def candidates(self) -> set[str]:
        """Who competes in queries of the relations: sampled, partition, all."""
        return {self.config.candidates_of(relation) for relation in self.config.relations}

    @property
    def featurized(self) -> bool:
        """Whether a type that relations touch is featurized."""
        return any(self.config.entities[name].featurized for name in self.config.used_entity_types)

    @property
    def num_partitions(self) -> Bucket:
        """The extent of the grid of buckets."""
        return grid(self.config)

    @property
    def num_edges(self) -> int:
        return sum(file.num_edges for files in self.buckets for file in files.values())

    def all_buckets(self) -> list[Bucket]:
        """Return every bucket of the grid, in PBG's order, empty ones too."""
        extent = self.num_partitions
        return [Bucket(lhs, rhs) for lhs in range(extent.lhs) for rhs in range(extent.rhs)]

    def bucket_file(self, unit: WorkUnit) -> BucketFile:
        return self.buckets[unit.path_index][unit.bucket]

    def partition_of(self, entity_type: str, side: Side, bucket: Bucket) -> int:
        """Return the partition of a type in a bucket; a type with one partition is in partition 0 of any bucket."""
        return bucket.partition(side) if self.config.entities[entity_type].num_partitions > 1 else 0

    def partitions_needed(self, bucket: Bucket) -> frozenset[tuple[str, int]]:
        """Return (entity type, partition) of all that the bucket's edges may touch."""
        return frozenset(
            (entity_type, self.partition_of(entity_type, side, bucket))
            for relation in self.config.relations
            for side, entity_type in ((Side.LHS, relation.lhs), (Side.RHS, relation.rhs))
        )


def grid(config: EvalConfig) -> Bucket:
    """Return the number of partitions on either side of the grid of buckets."""
    return Bucket(
        max(config.entities[relation.lhs].num_partitions for relation in config.relations),
        max(config.entities[relation.rhs].num_partitions for relation in config.relations),
    )


def open_inputs(config: EvalConfig) -> Inputs:
    """Open every header.

    Raises:
        EvalError: all faults of all files, a line each.
    """
    faults: list[str] = []
    checkpoint = Path(config.checkpoint_path)
    extent = grid(config)
    buckets: list[dict[Bucket, BucketFile]] = []
    for path in config.edge_paths:
        opened = _collect(faults, find_buckets, Path(path), extent.lhs, extent.rhs)
        buckets.append(opened or {})
    known_paths = tuple(dict.fromkeys([*config.filter_paths, *config.train_paths]))
    known = [_collect(faults, find_buckets, Path(path), extent.lhs, extent.rhs) or {} for path in known_paths]
    num_relations: int | None = len(config.relations)
    if config.dynamic_relations:
        num_relations = _collect(faults, read_dynamic_relation_count, Path(config.entity_path))
    given: tuple[dict[Bucket, CandidateFile], ...] | None = ()
    if config.candidate_path is not None:
        given = _collect(faults, find_candidate_files, Path(config.candidate_path), buckets, enabled_sides(config))
    embeddings: dict[tuple[str, int], EmbeddingFile] = {}
    version = _collect(faults, read_checkpoint_version, checkpoint)
    if version is not None:
        for entity_type, partition in _partitions(config):
            file = _collect(faults, _open_partition, config, entity_type, partition, version)
            if file is not None:
                embeddings[entity_type, partition] = file
        if num_relations is not None:
            _collect(faults, read_relations, config, version, num_relations)
    if faults or version is None or num_relations is None:
        raise StorageError(*faults)
    inputs = Inputs(config, version, num_relations, tuple(buckets), embeddings, known_paths, tuple(known))
    restrictions = read_restrictions(config, inputs.numbering, num_relations)
    return evolve(inputs, restrictions=restrictions, candidate_files=given or ())


def enabled_sides(config: EvalConfig) -> tuple[Side, ...]:
    """Return the sides that are hidden in some query."""
    return tuple(side for side in Side if not side.pick(config.disable_lhs_negs, config.disable_rhs_negs))


def _collect(faults: list[str], action: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T | None:
    try:
        return action(*arguments, **named)
    except EvalError as error:
        faults.extend(error.faults)
        return None


def _partitions(config: EvalConfig) -> Iterable[tuple[str, int]]:
    for entity_type in config.used_entity_types:
        for partition in range(config.entities[entity_type].num_partitions):
            yield entity_type, partition


def _open_partition(config: EvalConfig, entity_type: str, partition: int, version: int) -> EmbeddingFile:
    return open_embeddings(
        Path(config.checkpoint_path),
        entity_type,
        partition,
        version,
        dimension=config.dimension_of(entity_type),
        num_rows=read_entity_count(Path(config.entity_path), entity_type, partition),
    )


def data_digests(inputs: Inputs) -> dict[str, object]:
    """Return a digest of the content of every file that can change a number, by role, without paths."""
    checkpoint = Path(inputs.config.checkpoint_path)
    model = model_path(checkpoint, inputs.checkpoint_version)
    known = dict(zip(inputs.known_paths, inputs.known_buckets, strict=True))
    return {
        "restrictions": inputs.restrictions.digest,
        "relation_groups": _digest_of_groups(inputs),
        "candidates": [
            {f"{bucket.lhs}_{bucket.rhs}": fingerprint(file.path) for bucket, file in sorted(files.items())}
            for files in inputs.candidate_files
        ],
        "edges": [_fingerprints(files) for files in inputs.buckets],
        "filter": [_fingerprints(known[path]) for path in dict.fromkeys(inputs.config.filter_paths)],
        "training": [_fingerprints(known[path]) for path in dict.fromkeys(inputs.config.train_paths)],
        "embeddings": {
            f"{entity_type}_{partition}": fingerprint(
                embedding_path(checkpoint, entity_type, partition, inputs.checkpoint_version)
            )
            for entity_type, partition in sorted(inputs.embeddings)
        },
        "model": fingerprint(model) if model.exists() else None,
    }


def _fingerprints(files: dict[Bucket, BucketFile]) -> dict[str, str]:
    return {f"{bucket.lhs}_{bucket.rhs}": fingerprint(file.path) for bucket, file in sorted(files.items())}


def _digest_of_groups(inputs: Inputs) -> str | None:
    """Return a digest of the groups of relations by which a breakdown is made, None if none is."""
    if "groups" not in inputs.config.breakdowns:
        return None
    groups = relation_groups(inputs.config, inputs.num_relations)
    canonical = json.dumps({name: ids.tolist() for name, ids in groups.items()}, sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()

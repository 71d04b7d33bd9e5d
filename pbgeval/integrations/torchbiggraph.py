"""A training run of PyTorch-BigGraph 1.0.0 -> held-out edges of each bucket, ranked before and after its training.

    python -m pbgeval.integrations.torchbiggraph config.py --monitor run/monitor

or in Python

    from torchbiggraph.config import parse_config
    from pbgeval.integrations.torchbiggraph import train
    train(config, "run/monitor")               # replaces torchbiggraph.train.train

By its own extension points alone: edges come through an edge storage of ours (`EDGE_STORAGES`), which wraps the one of
the config's edge paths, holds edges out and measures them when a bucket has been loaded; the generator
`train_and_report_stats` yields when its training has ended. All of it happens in the trainer's own process, between
two of its steps, on the embeddings in its memory: no file of its checkpoint is opened. Importing this module imports
torchbiggraph.
"""

from __future__ import annotations

import argparse
import os
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from enum import Enum
from itertools import count
from os import PathLike
from typing import Any, cast

import torch
from attrs import asdict, define, field
from torch import Tensor
from torchbiggraph import schema as their_schema
from torchbiggraph.checkpoint_manager import CheckpointManager
from torchbiggraph.config import ConfigFileLoader, ConfigSchema, add_to_sys_path
from torchbiggraph.edgelist import EdgeList
from torchbiggraph.graph_storages import EDGE_STORAGES, AbstractEdgeStorage
from torchbiggraph.model import MultiRelationEmbedder, make_model
from torchbiggraph.train import train_and_report_stats
from torchbiggraph.types import Side as TheirSide
from torchbiggraph.util import SubprocessInitializer, set_logging_verbosity, setup_logging

from pbgeval.cluster.resources import kept_thread_count, num_cores
from pbgeval.errors import ConfigError, EvalError, Faults
from pbgeval.monitor.measure import Visit
from pbgeval.monitor.monitor import Monitor
from pbgeval.monitor.records import PassKey, PassRecord, VisitRecord
from pbgeval.monitor.schema import ModelSchema, MonitoredRelation
from pbgeval.notation import ENDS, Bucket, Side

SCHEME = "pbgeval"  # of the edge paths that PyTorch-BigGraph sees
_SIDES = {Side.LHS: TheirSide.LHS, Side.RHS: TheirSide.RHS}


def train(
    config: ConfigSchema,
    output: str | PathLike[str] | None,
    *,
    keep_own_evaluation: bool = False,
    model: MultiRelationEmbedder | None = None,
    trainer: Any = None,  # noqa: ANN401 - an AbstractBatchProcessor of torchbiggraph's
    evaluator: Any = None,  # noqa: ANN401 - of PyTorch-BigGraph
    subprocess_init: Callable[[], None] | None = None,
    **settings: Any,  # noqa: ANN401 - those of `Monitor`
) -> Monitor:
    """Train as `torchbiggraph.train.train` does, and watch every visit to a bucket.

    `eval_fraction`, `eval_num_batch_negs` and `eval_num_uniform_negs` of the config are the monitor's; the checkpoint
    gets the config as it is given. A run that goes on from a checkpoint goes on in `output` too.

    Args:
        config: of one machine, without featurized entities.
        output: folder of `training_stats.json`, as `Monitor` has it; not the checkpoint, where PyTorch-BigGraph's is.
        keep_own_evaluation: PyTorch-BigGraph holds that fraction of the remaining edges out as well, and evaluates it.
        model: as in `torchbiggraph.train.train`, as the next three are.
        trainer: what processes batches.
        evaluator: what evaluates batches, if `keep_own_evaluation`.
        subprocess_init: is called in each of its processes.
        settings: of `Monitor`, over those of the config.

    Returns:
        The monitor, which knows the figures of all passes.

    Raises:
        ConfigError: several machines, featurized entities, `output` is the checkpoint, or `filtered` where a bucket may
            be trained in parts.
    """
    _refuse(config, output, is_filtered=bool(settings.get("filtered")))
    model = model or make_model(config)
    defaults = {
        "eval_fraction": config.eval_fraction,
        "eval_num_batch_negs": config.eval_num_batch_negs,
        "eval_num_uniform_negs": config.eval_num_uniform_negs,
        "sides": [side for side in ENDS if not side.pick(config.disable_lhs_negs, config.disable_rhs_negs)],
        "margin": config.margin,
        "batch_size": config.batch_size,
    }
    monitor = Monitor(schema_of(config, model), output, **(defaults | settings))
    with closing(CheckpointManager(config.checkpoint_path)) as checkpoints:
        hook = _Hook(config, model, monitor, int(checkpoints.checkpoint_version) - 1)
    seen = _SeenByTrainer.from_config(config, own_fraction=config.eval_fraction if keep_own_evaluation else 0.0)
    with _registered(hook):
        for _, _, stats, _ in train_and_report_stats(seen, model, trainer, evaluator, subprocess_init=subprocess_init):
            hook.bucket_is_trained(stats)
    if hook.last is not None:  # passes before have ended as the next one began
        monitor.end_pass(hook.last.epoch, edge_path=hook.last.edge_path, edge_chunk=hook.last.edge_chunk)
    return monitor


def schema_of(config: ConfigSchema, model: MultiRelationEmbedder) -> ModelSchema:
    """Return what the monitor knows of a config's model."""
    return ModelSchema(
        [MonitoredRelation(of.name, of.lhs, of.rhs, of.operator, of.all_negs) for of in config.relations],
        {name: of.num_partitions for name, of in config.entities.items()},
        config.comparator,
        num_dynamic_relations=model.num_dynamic_rels or None,
        bias=config.bias,
        max_norm=config.max_norm,
    )


@define(eq=False)
class TrainerModel:
    """The tensors in a trainer's memory, as a monitor reads them."""

    model: MultiRelationEmbedder
    num_partitions: Mapping[str, int]
    bucket: Bucket  # whose partitions are there

    def embeddings(self, entity_type: str, partition: int) -> Tensor:
        for side in ENDS:
            found: Tensor | None = self.model.get_embeddings(entity_type, _SIDES[side])
            if found is not None and self.bucket.partition_of(side, self.num_partitions[entity_type]) == partition:
                return found
        raise AssertionError(f"partition {partition} of '{entity_type}' is not of bucket {tuple(self.bucket)}")

    def operator_parameters(self, relation: int, side: Side) -> Mapping[str, Tensor]:
        operator = side.pick(self.model.lhs_operators, self.model.rhs_operators)[relation]
        # Those of dynamic relations have plural names, but for real and imag.
        return {name.removesuffix("s"): parameter for name, parameter in operator.named_parameters()}

    def global_embedding(self, entity_type: str) -> Tensor | None:
        vectors = self.model.global_embs
        return None if vectors is None else cast("Tensor", vectors[self.model.EMB_PREFIX + entity_type])


@define(eq=False)
class _Hook:
    """Pass what the trainer does on to the monitor."""

    config: ConfigSchema
    model: MultiRelationEmbedder
    monitor: Monitor
    iteration: int  # the number of the pass in hand from 0, of all runs of this checkpoint, all paths and all chunks
    _visit: Visit | None = field(default=None, init=False)
    last: PassKey | None = field(default=None, init=False)  # of the last visit

    def bucket_is_loaded(self, edges: EdgeList, place: Bucket, path: int, chunk: int, num_chunks: int) -> EdgeList:
        """Hold edges out and measure them; return the others."""
        split = self.monitor.split(
            (edges.lhs.to_tensor(), edges.rel, edges.rhs.to_tensor()), place, edge_path=path, edge_chunk=chunk
        )
        visit = self.monitor.watch(
            self.iteration // num_chunks // len(self.config.edge_paths),
            place,
            TrainerModel(self.model, self.monitor.schema.num_partitions, place),
            edge_path=path,
            edge_chunk=chunk,
        )
        with _all_threads(self.config):
            self._visit, self.last = visit.__enter__(), visit.key
        return edges if split.training_rows is None else edges[torch.from_numpy(split.training_rows)]

    def bucket_is_trained(self, stats: Any) -> None:  # noqa: ANN401 - torchbiggraph.stats.Stats
        """Measure again; what the trainer first reports of an earlier run is no visit."""
        visit, self._visit = self._visit, None
        if visit is not None:
            visit.report_training(stats.count, **stats.metrics)
            with _all_threads(self.config):
                visit.__exit__(None, None, None)


class _SeenByTrainer(ConfigSchema):  # type: ignore[misc] # torchbiggraph is not installed where types are checked
    """A config with our edge paths; what it writes is the user's."""

    @classmethod
    def from_config(cls, config: ConfigSchema, *, own_fraction: float) -> _SeenByTrainer:
        values = {of.name: getattr(config, of.name) for of in ConfigSchema.__attrs_attrs__}
        paths = [f"{SCHEME}:{index}:{path}" for index, path in enumerate(config.edge_paths)]
        seen = cls(**{**values, "edge_paths": paths, "eval_fraction": own_fraction})
        object.__setattr__(seen, "as_given", config)  # the class is frozen
        return seen

    def to_dict(self) -> dict[str, Any]:
        """Return the user's config as its own `to_dict` does.

        That one fails once enough types were made since torchbiggraph was imported: it compares an Optional by
        identity, and Python forgets those that it has made.
        """

        def plain(_: Any, __: Any, value: Any) -> Any:  # noqa: ANN401 - of any field
            return value.name.lower() if isinstance(value, Enum) else value

        return asdict(self.as_given, value_serializer=plain)


@contextmanager
def _registered(hook: _Hook) -> Iterator[None]:
    """Register the edge storage of this run."""

    def monitored(url: str) -> AbstractEdgeStorage:
        """Open the storage of a path, whose edges go through the hook."""
        _, index, path = url.split(":", 2)
        storage = EDGE_STORAGES.make_instance(path)
        load = storage.load_chunk_of_edges
        loads = count()

        def load_chunk_of_edges(lhs_p: int, rhs_p: int, chunk_idx: int = 0, num_chunks: int = 1) -> EdgeList:
            edges = load(lhs_p, rhs_p, chunk_idx, num_chunks)
            hook.iteration += next(loads) == 0  # the trainer makes a storage for each pass, one more to count edges
            return hook.bucket_is_loaded(edges, Bucket(lhs_p, rhs_p), int(index), chunk_idx, num_chunks)

        storage.load_chunk_of_edges = load_chunk_of_edges
        return storage

    EDGE_STORAGES.register(SCHEME, monitored)
    try:
        yield
    finally:
        del EDGE_STORAGES.registry[SCHEME]


@contextmanager
def _all_threads(config: ConfigSchema) -> Iterator[None]:
    """Let a measurement use what the trainer's workers, which wait for it, would use."""
    with kept_thread_count():
        torch.set_num_threads(min(config.workers or num_cores(), num_cores()))
        yield


def _refuse(config: ConfigSchema, output: str | PathLike[str] | None, *, is_filtered: bool) -> None:
    featurized = [name for name, of in config.entities.items() if of.featurized]
    rules = (
        (
            config.num_machines > 1,
            f"num_machines: expected 1, got {config.num_machines}: the trainers of several machines have no group "
            "that a monitor could join; train without it",
        ),
        (
            featurized,
            f"entities: expected none that is featurized, got {', '.join(featurized)}: the monitor ranks single "
            "entities; train without it",
        ),
        (
            output is not None and os.path.realpath(output) == os.path.realpath(config.checkpoint_path),
            f"{output}: expected a folder of the monitor's own, got the checkpoint, where PyTorch-BigGraph "
            "writes a training_stats.json itself",
        ),
        (
            is_filtered and (config.num_edge_chunks != 1 or len(config.edge_paths) > 1),
            "filtered: needs num_edge_chunks = 1 and one edge path, so that each bucket is trained with all its edges",
        ),
    )
    Faults(fault for is_wrong, fault in rules if is_wrong).raise_any(ConfigError)


class PassLines:
    """A sink that prints a line per pass, as `Monitor.end_pass` does."""

    def append(self, record: VisitRecord | PassRecord) -> None:
        if isinstance(record, PassRecord):
            print(record, flush=True)


def _unpack_optional(type_: Any) -> Any:  # noqa: ANN401 - an annotation
    """Return X of Optional[X]. Theirs compares by identity, and Python forgets types that it has made."""
    arguments = typing.get_args(type_)
    if len(arguments) != 2 or arguments[1] is not type(None):
        raise TypeError("Not an optional type")
    return arguments[0]


def main() -> None:
    """Train as `torchbiggraph_train` does, and watch every visit to a bucket."""
    parser = argparse.ArgumentParser(
        prog="python -m pbgeval.integrations.torchbiggraph",
        description="Train with PyTorch-BigGraph and record held-out metrics of every bucket.",
    )
    parser.add_argument("config", metavar="CONFIG", help="PyTorch-BigGraph config file")
    parser.add_argument("-p", "--param", metavar="KEY=VALUE", action="append", help="override a config key; repeatable")
    parser.add_argument("--monitor", metavar="DIR", required=True, help="folder for the records, training_stats.json")
    arguments = parser.parse_args()
    their_schema.unpack_optional = _unpack_optional
    loader = ConfigFileLoader()
    config = loader.load_config(arguments.config, arguments.param)
    setup_logging(config.verbose)
    set_logging_verbosity(config.verbose)
    initializer = SubprocessInitializer()
    initializer.register(setup_logging, config.verbose)
    initializer.register(add_to_sys_path, loader.config_dir.name)
    try:
        monitor = train(config, arguments.monitor, subprocess_init=initializer, sinks=[PassLines()])
    except EvalError as error:
        sys.exit(str(error))
    if (best := monitor.best_epoch("mrr")) is not None:
        print(f"keep epoch {best}, by held-out MRR")
    print(f"records: {arguments.monitor}; plot them with kgeval-dist monitor {arguments.monitor}")


if __name__ == "__main__":
    main()

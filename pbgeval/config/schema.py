"""The keys of a configuration: types, defaults, groups and help texts.

PyTorch-BigGraph's keys are here beside ours, so that its config files and checkpoints load unchanged. The keys that
only training uses are no attributes of `EvalConfig`: `TRAINING_KEYS` names them. This module fixes types and defaults;
`checks.py` checks values.
"""

from __future__ import annotations

import difflib
import functools
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from attrs import field, frozen

from pbgeval.errors import ConfigError, Faults
from pbgeval.notation import Side, labels_of
from pbgeval.stats.rank_types import RANK_TYPE_SYNONYMS
from pbgeval.storage.edge_columns import EdgeForms
from pbgeval.storage.text import parse_memory

if TYPE_CHECKING:
    from pbgeval.metrics.names import Selection


# How a key is declared: its default, the group it is listed in, its help text; and how declarations are read back.

GRAPH, MODEL, EVALUATION, OUTPUT = "graph", "model", "evaluation", "output"
GROUPS = (GRAPH, MODEL, EVALUATION, OUTPUT)

# Keys of PyTorch-BigGraph that only training uses: a config file may set them, and nothing reads them.
TRAINING_KEYS = (
    "init_path",
    "init_scale",
    "checkpoint_preservation_interval",
    "regularization_coef",
    "regularizer",
    "num_epochs",
    "num_edge_chunks",
    "max_edges_per_chunk",
    "bucket_order",
    "lr",
    "relation_lr",
    "eval_fraction",
    "eval_num_batch_negs",
    "eval_num_uniform_negs",
    "background_io",
    "verbose",
    "hogwild_delay",
    "num_machines",
    "num_partition_servers",
    "distributed_init_method",
    "distributed_tree_init_order",
    "num_gpus",
    "num_groups_for_partition_server",
    "num_groups_per_sharded_partition_server",
    "partition_shard_size",
    "half_precision",
)


OF_MODEL = ("entities", "relations", "entity_path", "checkpoint_path")  # required keys that `model` stands for


def key(default: object, group: str, text: str, *, required: bool = False) -> Any:  # noqa: ANN401 (see the annotation)
    """Declare a key.

    Args:
        default: an immutable value, or what makes the default of each config; `attrs.NOTHING`: there is none.
        group: that it is listed in.
        text: its help.
        required: a config must set it; in Python it may be blank where its data is handed in.
    """
    metadata = {"group": group, "help": text, "required": required}
    return field(default=attrs.Factory(default) if callable(default) else default, metadata=metadata)


def keys_of(schema: type[attrs.AttrsInstance]) -> dict[str, attrs.Attribute[Any]]:
    """Return the keys that a config file may set in a schema class, in order."""
    return {name: spec for name, spec in attrs.fields_dict(schema).items() if "help" in spec.metadata}


def default_of(spec: attrs.Attribute[Any]) -> object:
    """Return the default of a key; `attrs.NOTHING` if a config must set it."""
    if spec.metadata["required"]:
        return attrs.NOTHING
    factory: Callable[[], object] | None = getattr(spec.default, "factory", None)
    return spec.default if factory is None else factory()


# What arguments of Python functions are called in a config.
_OF_ARGUMENTS = {"test": "edge_paths", "known": "filter_paths", "train": "train_paths"}
_OF_RUNS = ("output", "device", "overwrite")  # options of commands and arguments of functions, no keys


def unknown_key(key: object, known: Iterable[str]) -> str:
    """Return the message for an unknown key; it names the nearest known one."""
    names = sorted(known)
    if (meant := _OF_ARGUMENTS.get(str(key))) in names:
        return f"unknown key; did you mean {meant!r}?"
    if "entity_path" in names and key == "labels":
        return "unknown key; names are found in dictionary_path, those in tables of a checkpoint in entity_path"
    if "entity_path" in names and key in _OF_RUNS:
        return f"unknown key; use --{key} (in Python: the argument {key})"
    if key == "all_negs" and "candidates" in names:  # a key of each relation
        return "unknown key; did you mean candidates=partition, or relations.INDEX.all_negs?"
    # Old PBG configs have keys in mixedCase.
    snake_case = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", str(key)).lower()
    if snake_case in TRAINING_KEYS:
        return "only PyTorch-BigGraph's training uses this key; remove it"
    training = difflib.get_close_matches(snake_case, TRAINING_KEYS, n=1, cutoff=0.8)
    if close := difflib.get_close_matches(snake_case, names, n=1) or training:
        return f"unknown key; did you mean {close[0]!r}?"
    few = f"the keys here are {', '.join(names)}"
    return f"unknown key; {few if len(names) <= 8 else 'kgeval-dist --help-config lists all keys'}"


def checks_names(schema: type[attrs.AttrsInstance]) -> type[attrs.AttrsInstance]:
    """Make a schema class refuse keys that it does not have, and ask for those it needs, in plain lines."""
    make, specs = schema.__init__, attrs.fields_dict(schema)

    @functools.wraps(make)
    def checked(self: object, *args: object, **keys: object) -> None:
        lines = Faults(f"{key}: {unknown_key(key, keys_of(schema))}" for key in keys if key not in specs)
        missing = [name for name, spec in specs.items() if spec.default is attrs.NOTHING and name not in keys]
        lines += [f"{', '.join(missing)}: this key is required"] if missing and not args else []
        lines.raise_any(ConfigError)
        if "given" in specs:
            keys.setdefault("given", frozenset(keys))
        make(self, *args, **keys)

    schema.__init__ = checked  # type: ignore[method-assign]
    return schema


@functools.cache
def types_of(schema: type[attrs.AttrsInstance]) -> Mapping[str, Any]:
    """Return the type of each key."""
    return typing.get_type_hints(schema)


def without_none(type_: Any) -> Any:  # noqa: ANN401 (any annotation)
    """Return the other type of a union with None."""
    if typing.get_origin(type_) is types.UnionType:
        return next(option for option in typing.get_args(type_) if option is not types.NoneType)
    return type_


BREAKDOWNS = (  # tables, but for the last, which is a section of metrics.json
    "relation",
    "entity_types",
    "cardinality",
    "relation_frequency",
    "entity_frequency",
    "groups",
    "time",
    "popularity",
)
TRAINING_BREAKDOWNS = frozenset({"cardinality", "relation_frequency", "entity_frequency"})  # they count train_paths


@checks_names
@frozen(kw_only=True)
class EntitySchema:
    """One entity type.

    Examples:
        >>> from pbgeval import EntitySchema, EvalConfig
        >>> config = EvalConfig(entities={"user": EntitySchema(num_partitions=4)})
        >>> config.entities["user"].num_partitions
        4
    """

    num_partitions: int = key(
        attrs.NOTHING,
        GRAPH,
        "Number of partitions of this entity type: 1, or the same number as all other types with several.",
    )
    featurized: bool = key(False, MODEL, "True: an entity is a set of features, and its embedding is their mean.")
    dimension: int | None = key(None, MODEL, "Dimension of this type's embeddings. Unset: `dimension` of the config.")


@checks_names
@frozen(kw_only=True)
class RelationSchema:
    """One relation type; the id in edge files is its index in `relations`.

    Examples:
        >>> from pbgeval import EvalConfig, RelationSchema
        >>> likes = RelationSchema(name="likes", lhs="user", rhs="item", operator="translation")
        >>> EvalConfig(relations=[likes], candidates="all").relations[0].operator
        'translation'
    """

    name: str = key(attrs.NOTHING, GRAPH, "Name of the relation. Two relations may have the same name.")
    lhs: str = key(attrs.NOTHING, GRAPH, "Entity type of the left-hand side: a name in `entities`.")
    rhs: str = key(attrs.NOTHING, GRAPH, "Entity type of the right-hand side: a name in `entities`.")
    weight: float = key(1.0, EVALUATION, "Weight of the relation's edges in the loss. Does not change ranks.")
    operator: str = key(
        "none",
        MODEL,
        "Transformation of one side's embeddings: none, diagonal, translation, linear, affine or "
        "complex_diagonal, as in PBG; or rotate, swapped_diagonal or projected_translation.",
    )
    all_negs: bool = key(
        False,
        EVALUATION,
        "True: rank against every entity of the bucket's partition. Ignored if `candidates` is set.",
    )


@checks_names
@frozen(kw_only=True)
class EvalConfig:
    """Every setting of an evaluation. `load_config` checks it; paths are absolute from then on.

    Examples:
        >>> import pbgeval
        >>> def score(lhs, rel, rhs):
        ...     return -(lhs + 1 - rhs).abs().float()
        ...
        >>> model = pbgeval.edge_scorer(score, num_entities=5, num_relations=1)
        >>> config = pbgeval.EvalConfig(candidates="all", breakdowns=["relation"])
        >>> pbgeval.evaluate(config, model=model, edges=[(0, 0, 1)]).tables
        ('buckets', 'rank_histogram', 'relations')
    """

    # graph
    entities: dict[str, EntitySchema] = key(
        dict, GRAPH, "The entity types, by the names that relations and files use.", required=True
    )
    relations: list[RelationSchema] = key(
        list,
        GRAPH,
        "The relation types, in the order of their ids. With dynamic relations: exactly one entry.",
        required=True,
    )
    entity_path: str = key(
        str, GRAPH, "Directory or URL with the entity counts (entity_count_TYPE_PARTITION.txt).", required=True
    )
    edge_paths: list[str] = key(
        list,
        GRAPH,
        "Edges to evaluate: directories or URLs with edge files (edges_LHS_RHS.h5), or edges by name (.tsv, "
        ".txt, .del, .csv or .parquet; text may be compressed as .gz or .zst). With `model`, also .npy arrays of "
        "integers with shape (edges, 3): lhs, rel, rhs. With several paths, each one is also reported "
        "separately.",
        required=True,
    )
    dynamic_relations: bool = key(
        False, GRAPH, "True: the edge files define the relations. All of them share the single entry of `relations`."
    )
    dictionary_path: str | None = key(
        None,
        GRAPH,
        "Directory with entity names (entity_names_TYPE_PARTITION.json) and relation names "
        "(dynamic_rel_names.json), or with files of labels. Required for text or Parquet edges. Unset: `entity_path`. "
        "With `model`, tables, lists and restrictions have these names too, unless `entity_path` is set.",
    )
    edge_columns: str | None = key(
        None,
        GRAPH,
        "Columns of text or Parquet edges: a letter per column (h head, r relation, t tail, w weight, s time, _ "
        "ignored; ht: no relation), or column names as HEAD,RELATION,TAIL[,WEIGHT[,TIME]]. For one type of file or "
        "one file, write TYPE=COLUMNS or FILE=COLUMNS, with semicolons between: hrt;parquet=from,via,to. Unset: hrt "
        "for text; for Parquet lhs,rel,rhs or head,relation,tail or subject,predicate,object.",
    )
    edge_delimiter: str | None = key(
        None,
        GRAPH,
        "What separates the columns of text edges: one character, or tab, comma, semicolon, space, pipe. Unset: comma "
        "in .csv, else tab.",
    )
    edge_comment: str | None = key(
        None, GRAPH, "Lines of text edges that begin with this are skipped, for example #. Unset: no comments."
    )

    unknown: str = key(
        "refuse",
        GRAPH,
        "Evaluated edges with unknown names, which text and Parquet have and imports left out: refuse them, or skip "
        "them, which the result says. Known edges with unknown names are always left out, with a warning.",
    )

    # model
    checkpoint_path: str = key(
        str,
        MODEL,
        "Directory or URL (s3://bucket/prefix) of the checkpoint: embeddings and operator parameters.",
        required=True,
    )
    dimension: int | None = key(None, MODEL, "Dimension of the embeddings, for entity types that do not set their own.")
    max_norm: float | None = key(
        None, MODEL, "Maximum norm of an embedding. Longer vectors are scaled down to it. Unset: no limit."
    )
    global_emb: bool = key(
        True, MODEL, "True: add a vector per entity type to its embeddings. Not for dynamic relations."
    )
    comparator: str = key(
        "cos",
        MODEL,
        "How to compare the embeddings of the two sides: dot, cos, l2 or squared_l2, as in PBG; or l1, "
        "complex_l1 or clamped_dot.",
    )
    bias: bool = key(False, MODEL, "True: the first dimension is a bias that is added to the score.")
    model: str | None = key(
        None,
        MODEL,
        "Model of another system, used instead of a checkpoint: a folder saved by DGL-KE or GraphStorm, a "
        "checkpoint of LibKGE (.pt) or torch.distributed, or tables of vectors (.npy, .safetensors, .pt, "
        "Parquet). It sets entities, relations, dimension, comparator and operator.",
    )
    model_options: dict[str, object] = key(
        dict,
        MODEL,
        "Score function and tables of `model`, if its files do not specify them: the keys of model.json, for "
        'example {"model": "transe", "norm": 2}.',
    )
    trust_pickle: bool = key(False, MODEL, "True: unpickle the model file. This can execute any code in it.")

    # evaluation
    candidates: str | None = key(
        None,
        EVALUATION,
        "What to rank the true entity against: sampled (negatives drawn as in PBG), partition (all entities of "
        "the bucket's partition) or all (all entities of the type). Unset: partition for relations with "
        "all_negs, otherwise sampled.",
    )
    num_batch_negs: int = key(
        50,
        EVALUATION,
        "Edges per chunk with sampled candidates. The edges of a chunk use each other's entities as negatives.",
    )
    num_uniform_negs: int = key(
        50,
        EVALUATION,
        "Negatives per chunk drawn uniformly from the bucket's partition, with sampled candidates.",
    )
    num_degree_negs: int = key(
        0,
        EVALUATION,
        "Negatives per chunk drawn from the bucket's partition in proportion to the degree in train_paths, "
        "raised to degree_power, with sampled candidates.",
    )
    degree_power: float = key(1.0, EVALUATION, "Exponent of the degree for num_degree_negs, above 0 and at most 16.")
    disable_lhs_negs: bool = key(False, EVALUATION, "True: skip head queries, which predict the left-hand entity.")
    disable_rhs_negs: bool = key(False, EVALUATION, "True: skip tail queries, which predict the right-hand entity.")
    relation_prediction: bool = key(
        False,
        EVALUATION,
        "True: also rank the relation of every edge among the relations between its entity types. Needs "
        "candidates=all or candidates=partition.",
    )
    seed: int = key(0, EVALUATION, "Random seed. The same seed gives the same results.")
    rank_type: str | None = key(
        None,
        EVALUATION,
        "Rank type of the headline metrics: optimistic (best), realistic (average) or pessimistic (worst). "
        "Unset: realistic, or pessimistic with pbg_semantics. All three are always written.",
    )
    hits_at: list[int] = key(lambda: [1, 3, 5, 10, 50], EVALUATION, "Cutoffs k of hits@k.")
    compute_loss: bool = key(False, EVALUATION, "True: also compute PBG's loss, of sampled or partition candidates.")
    loss_fn: str = key("ranking", EVALUATION, "Loss for compute_loss: logistic, ranking or softmax.")
    margin: float = key(0.1, EVALUATION, "Margin of the ranking loss.")
    pbg_semantics: bool = key(
        False,
        EVALUATION,
        "True: reproduce torchbiggraph_eval, including its chunks and its copies of the true entity among the "
        "negatives. Needs `workers`.",
    )
    workers: int | None = key(
        None,
        EVALUATION,
        "Maximum number of cores to use. With pbg_semantics: number of slices per bucket, as in PBG, which "
        "changes the results. The option --workers sets the number of processes.",
    )
    batch_size: int = key(1000, EVALUATION, "Edges per batch with pbg_semantics. Must be a multiple of num_batch_negs.")
    filter_paths: list[str] = key(
        list,
        EVALUATION,
        "Known edges, in the formats of edge_paths. Filtered metrics exclude them from the candidates.",
    )
    train_paths: list[str] = key(
        list,
        EVALUATION,
        "Training edges, in the formats of edge_paths. They also count as known edges. Frequencies, leaked "
        "edges and unseen entities are computed from them.",
    )
    time_window: int | None = key(
        None,
        EVALUATION,
        "Also compute time-aware filtered metrics: only known edges whose time is at most this far from the query's "
        "are left out. 0: the same time. Edges need times. Unset: no such metrics.",
    )
    known_until: str | None = key(
        None,
        EVALUATION,
        "query: known edges later than the query are not left out of its candidates, and settings that observe or "
        "count known edges of all times are refused. Edges need times. Unset: known edges of any time are left out.",
    )
    restrict_entities: list[str] | None = key(
        None,
        EVALUATION,
        "Evaluate only edges between these entities, and rank only against them. Names, or type:partition:row.",
    )
    restrict_relations: list[str] | None = key(
        None, EVALUATION, "Evaluate only edges with these relations. Names, or indices as text ('3')."
    )
    head_candidates: list[str] | None = key(
        None,
        EVALUATION,
        "Rank head queries, which predict the left-hand entity, only against these entities. Names, or "
        "type:partition:row. A query whose true entity is not in the list is counted but not ranked.",
    )
    tail_candidates: list[str] | None = key(
        None, EVALUATION, "Rank tail queries only against these entities, as in head_candidates."
    )
    type_constraint: str = key(
        "schema",
        EVALUATION,
        "Allowed candidates of a relation: schema (all entities of its type) or observed (entities that a known "
        "edge has on that side of the relation). With observed, only relations of known edges are candidates for "
        "a relation.",
    )
    candidate_path: str | None = key(
        None,
        EVALUATION,
        "Directory with a candidate list for each edge (candidates_LHS_RHS.h5). With several edge paths: one "
        "folder per path, named 0, 1, ...",
    )
    precision: str | None = key(
        None,
        EVALUATION,
        "Precision of scores: exact, float32 or float64. exact gives the ranks of exact arithmetic on float32 vectors, "
        "the same on every machine. With float32 and float64, near-ties depend on rounding. Unset: exact, but float32 "
        "where exact is not defined (with pbg_semantics or relation_prediction, for a model that is asked for scores, "
        "with complex_l1 and rotate) and where it takes much longer (sampled candidates with some comparators and "
        "operators). A model that is asked for scores is ranked by them as it returns them.",
    )
    sample_edges: int | None = key(
        None,
        EVALUATION,
        "Number of edges to evaluate, drawn at random. Metrics then have 95% intervals. Unset: all edges.",
    )
    target_error: float | None = key(
        None,
        EVALUATION,
        "Keep sampling edges until the 95% interval of target_metric is within plus or minus this, corrected for "
        "repeated looks. Unset: no target.",
    )
    target_metric: str | None = key(
        None,
        EVALUATION,
        "Metric for target_error: mean_rank, mean_reciprocal_rank, hits_at_K or query_auc, optionally with side "
        "and rank type in front (head.realistic.hits_at_10). Unset: mean_reciprocal_rank of both sides.",
    )
    max_memory: str | None = key(
        None,
        EVALUATION,
        "Memory limit per worker, for example 1.5GB or 2GiB. Does not change the results. A run that needs more "
        "is rejected. Unset: no limit.",
    )
    scratch_path: str | None = key(
        None, EVALUATION, "Directory for temporary copies of remote files. Unset: TMPDIR, or /tmp."
    )
    scratch_limit: str | None = key(
        None,
        EVALUATION,
        "Disk space for temporary copies on each host, for example 100GB. Files that do not fit are read "
        "remotely. Unset: half of the free space.",
    )

    # output
    metrics: list[str] = key(
        lambda: ["rank", "auc"],
        OUTPUT,
        "Metrics to report: families (rank, auc, average_precision, classification) or single metrics by any of "
        "their names (see kgeval-dist metrics), optionally with side and rank type in front.",
    )
    preset: str | None = key(
        None,
        OUTPUT,
        "Report the metrics of a published protocol instead of `metrics`, and check its settings: ogb (realistic, "
        "unfiltered), tgb (tails, filtered by time), dglke (pessimistic) or recsys (top-k metrics of tails).",
    )
    breakdowns: list[str] = key(
        lambda: ["relation"],
        OUTPUT,
        "Tables of metrics by group: relation, entity_types, cardinality, relation_frequency, entity_frequency, "
        "groups, time or popularity. cardinality, popularity and the frequencies need train_paths. groups needs "
        "relation_groups, time needs time_bin.",
    )
    time_bin: int | None = key(
        None, OUTPUT, "Width of the groups of the breakdown time, in the unit of the edges' times."
    )
    topk_metrics: bool = key(
        False,
        OUTPUT,
        "True: also recall, precision, NDCG, MAP and others of the first k candidates of each query, with all its "
        "evaluated answers together. k: as in hits_at. Needs known edges, and saves ranks.",
    )
    relation_groups: str | None = key(
        None, OUTPUT, "JSON file with named groups of relations for the breakdown groups: {NAME: [RELATION, ...]}."
    )
    save_ranks: bool | None = key(
        None,
        OUTPUT,
        "True: save the ranks of every query (48 bytes each) for compare and recompute. Unset: True for up to 10 "
        "million queries in up to 64 buckets (4 for sampled candidates).",
    )
    save_topk: int | None = key(
        None,
        OUTPUT,
        "Number of best candidates to save for every query. With topk_metrics, known answers that are not evaluated "
        "are left out. Unset: none.",
    )
    sinks: list[str] = key(
        list,
        OUTPUT,
        "Where else to log the headline metrics: tensorboard, which writes into sinks/ of the output directory.",
    )

    # where it came from: no keys, and no part of equality
    name: str = field(default="config", eq=False)  # of the config file, or of its checkpoint
    source: Path | None = field(default=None, eq=False)  # absolute path of the config file
    ignored: tuple[str, ...] = field(default=(), eq=False)  # training-only keys that it sets
    has_vectors: bool = field(default=True, eq=False)  # False: a model in memory is asked for scores
    shared: frozenset[str] = field(default=frozenset(), eq=False, repr=False)  # keys as a config file of PBG has them
    # Keys that were set, if only to their defaults; a copy by `attrs.evolve` has those of its original.
    given: frozenset[str] = field(default=frozenset(), eq=False, repr=False)

    @property
    def headline(self) -> str:
        """The headline rank type: optimistic, realistic or pessimistic."""
        if self.rank_type is None:
            return "pessimistic" if self.pbg_semantics else "realistic"
        return RANK_TYPE_SYNONYMS[self.rank_type].value

    @property
    def sides(self) -> tuple[Side, ...]:
        """What is hidden in some query."""
        disabled = (self.disable_lhs_negs, self.disable_rhs_negs, not self.relation_prediction)
        return tuple(side for side in Side if not disabled[side.value])

    @property
    def filtered(self) -> bool:
        """Whether known edges are read, so that filtered figures stand beside the raw ones."""
        return bool(self.filter_paths or self.train_paths)

    @property
    def filters_by_time(self) -> bool:
        """Whether known edges need times."""
        return self.time_window is not None or self.known_until is not None

    @property
    def uses_time(self) -> bool:
        """Whether evaluated edges need times."""
        return self.filters_by_time or "time" in self.breakdowns

    @property
    def samples_edges(self) -> bool:
        """Whether edges are drawn, of which there may be so few that all are."""
        return self.sample_edges is not None or self.target_error is not None

    @property
    def needs_ranks(self) -> bool:
        """Whether a section of metrics.json follows from saved ranks."""
        return self.topk_metrics or "popularity" in self.breakdowns

    @property
    def selection(self) -> Selection:
        """The metrics to report: those of `preset`, else `metrics`."""
        from pbgeval.metrics.names import PRESETS, Selection  # here: see `headline`

        return Selection.from_names(self.metrics if self.preset is None else PRESETS[self.preset])

    def edge_forms(self, names: Collection[str]) -> EdgeForms:
        """Return how files of edges with some names are read.

        Raises:
            ConfigError: `edge_columns` is of no such form.
        """
        texts = self.edge_columns.split(";") if self.edge_columns else []
        return EdgeForms.parse(texts, names, self.edge_delimiter, self.edge_comment, "edge_columns")

    @property
    def max_memory_bytes(self) -> int | None:
        """`max_memory` in bytes; None if it is unset.

        Raises:
            ConfigError: If it is not an amount of memory.
        """
        return None if self.max_memory is None else parse_memory(self.max_memory)

    @property
    def target_key(self) -> str:
        """The key of the report that `target_metric` means: of the enabled sides, and with an interval.

        Raises:
            pbgeval.metrics.names.UnknownMetricError: If it means none of these.
        """
        from pbgeval.metrics.names import resolve, target_keys  # here: see `headline`

        known = target_keys(labels_of(self.sides), self.hits_at)
        return resolve(self.target_metric or "mean_reciprocal_rank", self.headline, known)

    @property
    def used_entity_types(self) -> list[str]:
        """The entity types that relations name, in the order of `entities`; no other type's files are read."""
        used = {entity_type for relation in self.relations for entity_type in (relation.lhs, relation.rhs)}
        return [name for name in self.entities if name in used]

    def candidates_of(self, relation: RelationSchema) -> str:
        """Return which candidates compete in queries of a relation: sampled, partition or all.

        Given lists (`candidate_path`) may name entities of any partition, so they count as a part of all.
        """
        if self.candidate_path is not None:
            return "all"
        return self.candidates or ("partition" if relation.all_negs else "sampled")

    def dimension_of(self, entity_type: str) -> int:
        """Return the dimension of an entity type's embeddings.

        Raises:
            ConfigError: If neither the type nor the config sets one.
        """
        own = self.entities[entity_type].dimension
        dimension = self.dimension if own is None else own
        if dimension is None:
            raise ConfigError(f"dimension: required, as entities[{entity_type!r}] does not set its own")
        return dimension

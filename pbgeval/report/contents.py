"""What each file of an output directory holds, in words: names, keys, columns.

`docs/reference/output_files.md` is made of it, and of `other_contents.py`.

`tests/surface/test_reference_docs.py` compares every declaration with what runs write: a key that is not declared here
fails, and so does a declaration that nothing writes.
"""

from __future__ import annotations

from attrs import frozen

from pbgeval.metrics.breakdowns import BREAKDOWN_FILES, GROUP_COLUMNS
from pbgeval.metrics.ndcg import COUNTS
from pbgeval.monitor.records import FILE_NAME as TRAINING_STATS
from pbgeval.report.output import (
    BUCKETS,
    EARLIER,
    FILES,
    HISTOGRAM,
    IMPORTED,
    JOURNAL,
    LINES,
    METRICS,
    PAGE,
    SCRATCH,
    UNIT_LOG,
)
from pbgeval.report.topk_report import NOTES as LIST_NOTES
from pbgeval.report.type_report import NOTES as TYPE_NOTES
from pbgeval.storage.ranks import COLUMNS as RANK_COLUMNS
from pbgeval.storage.topk import TABLE_COLUMNS

SEVERAL = "*"  # in the path of a key: any key of an object, any item of a list
FIGURES = "`<side>.<rank type>.<metric>` or `<side>.<metric>` -> value, null if undefined"


@frozen
class Part:
    """A key of a JSON document, or a column of a table."""

    name: str  # of a key its path: diagnostics.*.num_queries
    type: str  # JSON's words: object, list, string, integer, number, boolean, null; of a column: what a cell holds
    text: str
    when: str = ""  # empty: always


@frozen
class OutputFile:
    """A file, or a folder of files."""

    name: str
    form: str
    text: str
    when: str = ""
    parts: tuple[Part, ...] = ()


_INTERVAL = (
    Part("intervals.*.standard_error", "number", "of the value"),
    Part("intervals.*.low", "number", "lower end of the 95 % interval"),
    Part("intervals.*.high", "number", "upper end"),
)
_COUNTED = "where `train_paths` are given"

METRICS_KEYS = (
    Part("schema_version", "integer", "1"),
    Part(
        "complete", "boolean", "true once everything is in; false: a run that is going on, or was ended before its end"
    ),
    Part("filter", "string", "`raw` or `filtered`: what `metrics` are"),
    Part("headline", "string", "the rank type that stands for the result"),
    Part("num_edges", "integer", "evaluated edges"),
    Part("num_queries", "integer", "ranked queries"),
    Part("metrics", "object", f"{FIGURES}; every query weighs alike"),
    Part("raw_metrics", "object", "the same without a filter", "filtered runs"),
    Part("macro_metrics", "object or null", "the same, every query key weighs alike; null where keys are not counted"),
    Part(
        "relation_macro_metrics", "object", "the mean over relations of mean rank, reciprocal rank, hits, `query_auc`"
    ),
    Part("intervals", "object", "of what is estimated; the keys of `metrics`"),
    *_INTERVAL,
    Part(
        "estimates", "object or null", "what all of a partition would give, from uniform draws; null unless asked for"
    ),
    Part("estimates.candidates", "string", "`partition`"),
    Part("estimates.metrics", "object", FIGURES),
    Part("estimates.intervals", "object", "the same keys -> `standard_error`, `low`, `high`, or null"),
    Part("estimates.num_queries_without_draws", "integer", "queries of which no draw competes"),
    Part("estimates.raw", "object", "`metrics`, `intervals` and that count, unfiltered", "filtered runs"),
    Part("sample", "object", "of which edges the figures are a sample", "`sample_edges`, `target_error`"),
    Part("sample.unit", "string", "what was drawn: `edge` or `chunk`"),
    Part("sample.num_units", "integer", "that were drawn"),
    Part("sample.population", "integer", "units that there are"),
    Part("sample.num_strata", "integer", "buckets, small ones joined"),
    Part("sample.rounds", "integer", "of `target_error`, else 1"),
    Part("sample.level", "number", "of the intervals"),
    Part("edge_paths", "list", "one of each of `edge_paths`"),
    Part("edge_paths.*.path", "string", "its last component"),
    Part("edge_paths.*.num_edges", "integer", "evaluated edges"),
    Part("edge_paths.*.metrics", "object", "as `metrics`"),
    Part("edge_paths.*.intervals", "object", "as `intervals`", "samples of edges"),
    Part("diagnostics", "object", "what a reader must know of the queries: `head`, `tail`, `both`"),
    Part("diagnostics.*.num_queries", "integer", "ranked queries"),
    Part("diagnostics.*.num_candidates", "object", "of a query, the true entity included"),
    Part("diagnostics.*.num_candidates.min", "integer or null", "least"),
    Part("diagnostics.*.num_candidates.mean", "number or null", "mean"),
    Part("diagnostics.*.num_candidates.max", "integer or null", "most"),
    Part("diagnostics.*.num_tied_queries", "integer", "queries with a competitor that scores the same"),
    Part("diagnostics.*.tied_share", "number or null", "of the queries"),
    Part("diagnostics.*.mean_num_ties", "number or null", "tied competitors of a query"),
    Part("diagnostics.*.num_queries_topped_up", "integer", "queries of short chunks, whose lists draws have filled up"),
    Part("diagnostics.*.num_queries_without_competitors", "integer", "rank 1 of 1"),
    Part("diagnostics.*.num_queries_outside", "integer", "true entity may not compete: counted, not ranked"),
    Part("diagnostics.*.num_copies_excluded", "integer", "copies of the true entity in sampled lists"),
    Part("diagnostics.*.num_known_excluded", "integer", "known answers that do not compete"),
    Part("diagnostics.*.num_undefined_losses", "integer", "queries whose loss is not a number"),
    Part("edge_diagnostics", "object or null", "what evaluated edges share; null where nobody looked (`formats.md`)"),
    Part("edge_diagnostics.num_edges", "integer", "evaluated edges"),
    Part("edge_diagnostics.num_repeated", "integer", "edges beyond the first of equal ones"),
    Part("edge_diagnostics.num_in_training", "integer or null", f"that are in `train_paths` too; null but {_COUNTED}"),
    Part("edge_diagnostics.num_entities", "integer", "that evaluated edges touch"),
    Part(
        "edge_diagnostics.num_entities_unseen", "integer or null", f"of them in no training edge; null but {_COUNTED}"
    ),
    Part("types", "object", "queries for entity types", "`taxonomy_path`"),
    Part("types.relations", "list", "their relations"),
    Part("types.num_queries", "integer", "keys with an NDCG"),
    Part("types.num_undefined", "integer", "keys without one"),
    Part("types.metrics", "object", "ranks and NDCG of these queries alone"),
    Part("provenance", "object", "all that can change a number, and nothing else"),
    Part("provenance.settings", "object", "keys of the config that can, with their values"),
    Part("provenance.checkpoint_version", "integer or null", "null: a model that has none"),
    Part("provenance.data", "object", "digests of files, by what they are"),
    Part("provenance.digest", "string", "32 hex digits of the three"),
    Part("run", "object", "all that may differ between equal runs"),
    Part("run.version", "string", "of pbgeval"),
    Part("run.num_workers", "integer", "processes"),
    Part("run.reproducible", "boolean", "whether every worker's kernels passed the self-check"),
    Part("run.started", "string", "UTC"),
    Part("run.seconds", "number", "from start to result"),
    Part("run.certified", "object", "candidates that fast products left open", "`precision = certified`"),
    Part("run.certified.in_float64", "integer", "decided in float64"),
    Part("run.certified.exactly", "integer", "decided exactly"),
    Part("run.edge_paths", "list", "where the evaluated edges lie, from here", "`save_ranks`"),
    Part("run.workers", "list", "one of each worker"),
    Part("run.workers.*.host", "string", "its name"),
    Part("run.workers.*.device", "string", "`cpu`, `cuda:0`, ..."),
    Part("run.workers.*.threads", "integer", "that compute"),
    Part("run.workers.*.kernels", "object", "version of torch, kind of processor or GPU, digest of a test product"),
    Part("run.workers.*.self_check_passed", "boolean", "whether equal rows have equal scores here"),
    Part("run.workers.*.block_rule", "string", "shapes of products that the self-check asks for (decision 0018)"),
    Part("run.workers.*.partition_loads", "integer", "times that it read a partition"),
    Part("run.workers.*.peak_memory_bytes", "integer", "largest resident size"),
    Part("run.workers.*.seconds", "object", "what it spent its time on"),
)

_BUCKET_PARTS = (
    Part("edge_path", "name", "its last component"),
    Part("lhs_partition", "number", ""),
    Part("rhs_partition", "number", ""),
    Part("num_edges", "number", "0: an empty bucket, without figures"),
    Part("both.<rank type>.<metric>", "number", "mean rank, mean reciprocal rank and hits of three rank types"),
    Part("both.query_auc", "number", ""),
    Part("both.auc", "number", ""),
    Part("both.loss", "number", "", "`compute_loss`"),
)
_HISTOGRAM_PARTS = (
    Part("side", "head, tail", ""),
    Part("rank_type", "optimistic, realistic, pessimistic", ""),
    Part("lower_edge", "number", "the lowest rank of the row, included"),
    Part("upper_edge", "number", "the highest, included; the same where ranks are exact"),
    Part("count", "number", "queries"),
)
_LINE_PARTS = (
    Part("run", "string", "the output directory's name"),
    Part("settings", "object", "digest, filter, headline, number of edges, and what else tells runs apart"),
    Part("step", "integer", "the checkpoint's version, else 0"),
    Part("values", "object", "headline figures under the keys of `metrics`; `raw.` and `.standard_error`: `sinks.md`"),
)
_UNIT_PARTS = (
    Part("time", "number", "seconds since the epoch"),
    Part("event", "string", "`start`, `finish`: of a unit; `entry`: written to the journal; `restored`: taken from it"),
    Part("writer", "string", "host and process"),
    Part("unit", "string", "its name (`formats.md`)", "`start`, `finish`"),
    Part("entry", "string", "file of the journal", "`entry`, `restored`"),
    Part("units", "integer", "how many it holds", "`entry`"),
)
_RANK_TEXTS = (
    "competitors that score higher than the true entity, known answers included",
    "competitors that score the same",
    "competitors and the true entity; 0: not ranked",
    "of `better`, known answers",
    "of `tied`",
    "of all competitors",
)
_TABLE_TEXTS = (
    "of the edge file",
    "head or tail: which is hidden",
    "name",
    "name",
    "name",
    "from 1; equal scores in the order of partition and row",
    "name",
    "higher is better",
    "1: a known answer other than the true entity",
    "1: the true entity",
)
_WHO = {
    "relation": ("a relation", ""),
    "entity_types": ("a pair of entity types", ""),
    "cardinality": ("relations of one cardinality", _COUNTED),
    "relation_frequency": ("a quarter of the relations by training edges", _COUNTED),
    "entity_frequency": ("a quarter of the entities at a side by training edges", _COUNTED),
    "groups": ("a group of `relation_groups`", "`relation_groups`"),
}


def _breakdown(name: str) -> OutputFile:
    who, needs = _WHO[name]
    when = f"`breakdowns` has `{name}`" + (f"; {needs}" if needs and not needs.startswith("`") else "")
    parts = [Part(column, "text", "the group") for column in GROUP_COLUMNS[name]]
    figures = Part(
        "<side>.<rank type>.<metric>",
        "number",
        "`count`, `mean_rank`, `mean_reciprocal_rank`, `hits_at_k`, `adjusted_mean_rank_index` of three rank types",
    )
    parts += [figures, Part("<side>.query_auc", "number", "")]
    if name == "relation":
        parts.append(Part("tail.<ndcg>", "number", "empty for relations that ask for no types", "`taxonomy_path`"))
    return OutputFile(
        BREAKDOWN_FILES[name], "CSV", f"A row for {who}, filtered where there is a filter.", when, tuple(parts)
    )


OUTPUT_DIRECTORY = (
    OutputFile(
        METRICS, "JSON", "The result. Written at the start with `complete` false, and last of all.", "", METRICS_KEYS
    ),
    OutputFile(BUCKETS, "CSV", "A row for each edge path and bucket, empty ones too.", "", _BUCKET_PARTS),
    OutputFile(HISTOGRAM, "CSV", "How many queries have which rank.", "", _HISTOGRAM_PARTS),
    *(_breakdown(name) for name in BREAKDOWN_FILES),
    OutputFile(LINES, "JSON lines", "One line, what sinks get.", "", _LINE_PARTS),
    OutputFile(UNIT_LOG, "JSON lines", "Who computed what, and when.", "", _UNIT_PARTS),
    OutputFile(
        "ranks/<path index>/ranks_<l>_<r>.h5",
        "HDF5",
        "Groups `head` and `tail`, int64, a row for each row of the edge file. For `recompute` and `compare`.",
        "`save_ranks`",
        tuple(Part(name, "int64", text) for name, text in zip(RANK_COLUMNS, _RANK_TEXTS, strict=True)),
    ),
    OutputFile(
        "topk/<path index>/topk_<l>_<r>.h5",
        "HDF5",
        "Groups `head` and `tail`, (edges, k), the best candidate first.",
        "`save_topk`",
        (
            Part("entity", "int64", "row in its partition; -1 where there are fewer"),
            Part("partition", "int64", "-1 where there are fewer"),
            Part("score", "float64", "NaN where there are fewer"),
            Part("known", "uint8", "1: a known answer other than the true entity"),
        ),
    ),
    OutputFile(
        "topk/<path index>/topk_<l>_<r>.tsv",
        "TSV",
        "The same with names.",
        "`save_topk`",
        tuple(Part(name, "text", text) for name, text in zip(TABLE_COLUMNS, _TABLE_TEXTS, strict=True)),
    ),
    OutputFile("sinks/<name>/", "folder", "What TensorBoard, Weights & Biases and MLflow read.", "`sinks`"),
    OutputFile(PAGE, "HTML", "The result as a page.", "`kgeval-dist report`"),
    OutputFile(f"{IMPORTED}/", "folder", "Buckets of files of edges that the config names; stays.", "`import.md`"),
    OutputFile(
        f"{JOURNAL}/",
        "folder",
        "Results of finished units, from which the same command goes on.",
        "while a run lasts, or was ended",
    ),
    OutputFile(FILES, "text", "The paths of all files of a finished result, a line each: what `--overwrite` replaces."),
    OutputFile(f"{EARLIER}/", "folder", "The result that a run replaces.", "until the run is complete"),
    OutputFile(f"{SCRATCH}/", "folder", "Arrays that workers share.", "while a run lasts"),
    OutputFile("owner.json, owner.heartbeat", "JSON, empty", "Who works here.", "while a run lasts"),
)


# What commands write beside the output directory of an evaluation, in words: see `contents.py`.

_DIFFERENCE = (
    ("metric", "string", "its key"),
    ("a", "number", "of run A"),
    ("b", "number", "of run B"),
    ("difference", "number", "b - a"),
    ("standard_error", "number or null", "null: too few clusters"),
    ("low", "number or null", "lower end of the 95 % interval"),
    ("high", "number or null", "upper end"),
    ("p_value", "number or null", "two-sided"),
    ("p_holm", "number or null", "corrected for the number of rows"),
    ("direction", "integer", "1: higher is better; -1: lower"),
)


def _differences(path: str) -> tuple[Part, ...]:
    return tuple(Part(f"{path}.*.{name}", type_, text) for name, type_, text in _DIFFERENCE)


COMPARISON_KEYS = (
    Part("a", "string", "run A"),
    Part("b", "string", "run B"),
    Part("side", "string", "head, tail or both"),
    Part("rank_type", "string", "optimistic, realistic or pessimistic"),
    Part("filter", "string", "raw or filtered"),
    Part("unit", "string", "what was drawn together: edge or chunk"),
    Part("clusters", "string", "key or edge"),
    Part("num_queries", "integer", "compared"),
    Part("differences", "list", "one of each metric"),
    *_differences("differences"),
    Part("relations", "list", "one of each relation; empty without edges"),
    Part("relations.*.relation", "string", "its name"),
    Part("relations.*.relation_id", "integer", ""),
    Part("relations.*.num_queries", "integer", ""),
    Part("relations.*.differences", "list", "as `differences`"),
    *_differences("relations.*.differences"),
)
_SHARED_WITH_RESULTS = ("schema_version", "complete", "filter", "headline", "num_edges", "num_queries")
LISTS_KEYS = (
    *(part for part in METRICS_KEYS if part.name in _SHARED_WITH_RESULTS),
    Part("metrics", "object", f"{FIGURES} or not told by the lists"),
    Part("intervals", "object", "`low` and `high` of metrics that the lists do not tell"),
    Part("refused", "object", "metrics of which they tell nothing -> the reason"),
    Part("diagnostics", "object", "`head`, `tail`, `both`"),
    Part("diagnostics.*.num_queries", "integer", "ranked queries"),
    Part("diagnostics.*.num_listed", "integer", "whose list has the true entity"),
    Part("diagnostics.*.num_candidates", "object", "`min`, `mean`, `max`, the true entity included"),
    Part("lists", "object", "what is odd about the lists"),
    *(Part(f"lists.{name}", "integer", text) for name, text in LIST_NOTES.items()),
    Part("lists.num_entities", "integer", "of `--entities`, else named anywhere"),
    Part("lists.longest", "integer", "length of the longest list"),
    Part("provenance", "object", "`settings`, `digest`"),
    Part("run", "object", "`version`"),
)
TYPES_KEYS = (
    Part("schema_version", "integer", "1"),
    Part("gain", "string", "linear or exponential"),
    Part("base", "number", "of exponential gains"),
    Part("discount", "string", "jk or standard"),
    Part("as_published", "boolean", "whether repeated types and the root gain"),
    Part("metrics", "object", "`ndcg_at_k`: the mean over queries that have one"),
    Part("counts", "object", "what is odd about the lists"),
    *(Part(f"counts.{name}", "integer", TYPE_NOTES.get(name, "judged queries")) for name in COUNTS),
    Part("queries", "object", "query -> its `ndcg_at_k`, null: it has none"),
)
IMPORT_KEYS = (
    Part("edges", "object", "by name"),
    Part("edges.*.files", "list", "that were read"),
    Part("edges.*.num_read", "integer", "edges"),
    Part("edges.*.num_written", "integer", "edges"),
    Part("edges.*.num_left_out", "integer", "edges with a name that the dictionaries lack"),
    Part("edges.*.num_buckets", "integer", "with an edge"),
    Part("edges.*.num_repeated", "integer", "edges beyond the first of equal ones"),
    Part("edges.*.num_unknown_entities", "integer", "distinct names"),
    Part("edges.*.num_unknown_relations", "integer", "distinct names"),
    Part("entities", "object", "type -> sizes of its partitions"),
    Part("partitioning", "object", "how entities were dealt out, or whose dictionaries were taken"),
    Part("dictionary_of", "list", "names whose edges have given the entities"),
)
_VALUES = "keys of `metrics` -> value"
_GAP = "keys of `metrics` -> `value`, `standard_error`"
_VISIT_AND_PASS = (
    Part("epoch_idx", "integer", "the pass: an epoch of a chunk of an edge path"),
    Part("edge_path_idx", "integer", ""),
    Part("edge_chunk_idx", "integer", ""),
    Part("index", "integer", "running number of the visit; of a pass, of its last"),
    Part("pbgeval", "object", "ours; absent from lines that PyTorch-BigGraph wrote"),
    Part("pbgeval.version", "integer", "1"),
    Part("pbgeval.before", "object", f"held-out edges before training: {_VALUES}"),
    Part("pbgeval.after", "object", "the same after it"),
    Part("pbgeval.training", "object or null", "as many training edges, after; null: not measured"),
    Part("pbgeval.gap", "object", f"after - before: {_GAP}"),
    Part("pbgeval.generalisation", "object", "training - held-out edges, both after"),
)
VISIT_KEYS = (
    Part("lhs_partition", "integer", "the bucket"),
    Part("rhs_partition", "integer", ""),
    Part("stats", "object or null", "`count` and `metrics` of the training itself"),
    Part("eval_stats_before", "object or null", "`count`, `metrics` under PBG's names"),
    Part("eval_stats_after", "object or null", "likewise"),
    *_VISIT_AND_PASS,
    Part("pbgeval.diverged", "boolean", "whether the model could not be ranked"),
    Part("pbgeval.reason", "string or null", "why not"),
    Part("pbgeval.worker", "integer", "who measured"),
    Part("pbgeval.cluster", "string", "what errors take for independent: edge or chunk"),
    Part("pbgeval.num_clusters", "integer", ""),
    Part("pbgeval.seconds", "number", "that measuring took"),
)
PASS_KEYS = (
    Part("eval_stats_chunk_avg", "object or null", "`count`, `metrics`: the mean *after* training"),
    *_VISIT_AND_PASS,
    Part("pbgeval.num_buckets", "integer", "with held-out edges"),
    Part("pbgeval.num_diverged", "integer", "visits"),
    Part("pbgeval.verdict", "string", "too_early, vanished, shrinking, persists, undecided (decision 0017)"),
    Part("pbgeval.lost", "number or null", "mean fall of the reciprocal rank since the last visits"),
    Part("pbgeval.level", "number or null", "of the verdict's test"),
)

OTHER_FILES = (
    OutputFile("`compare --output FILE`", "JSON", "Differences of two runs.", "", COMPARISON_KEYS),
    OutputFile("`topk --output FILE`", "JSON", "Figures of a rule learner's lists.", "", LISTS_KEYS),
    OutputFile("`types --output FILE`", "JSON", "NDCG of ranked lists of types.", "", TYPES_KEYS),
    OutputFile("`import-graph`: import.json", "JSON", "What was read, written, left out.", "", IMPORT_KEYS),
    OutputFile(
        "`import-graph`: <name>/unknown.tsv",
        "TSV",
        "Names that the dictionaries lack, most frequent first.",
        "where there are any",
        (
            Part("what", "text", "`entity:<type>` or `relation`"),
            Part("name", "text", ""),
            Part("occurrences", "number", ""),
        ),
    ),
    OutputFile(f"`Monitor`: {TRAINING_STATS}, a visit", "JSON lines", "A visit to a bucket.", "", VISIT_KEYS),
    OutputFile(f"`Monitor`: {TRAINING_STATS}, a pass", "JSON lines", "The summary of a pass.", "", PASS_KEYS),
)

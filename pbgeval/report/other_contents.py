"""What commands write beside the output directory of an evaluation, in words: see `contents.py`."""

from __future__ import annotations

from pbgeval.metrics.type_ndcg import COUNTS
from pbgeval.report.contents import FIGURES, METRICS_KEYS, OutputFile, Part
from pbgeval.report.topk_report import NOTES as LIST_NOTES
from pbgeval.report.type_report import NOTES as TYPE_NOTES
from pbgeval.training_stats.records import FILE_NAME as TRAINING_STATS

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

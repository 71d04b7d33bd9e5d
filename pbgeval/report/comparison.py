"""Two finished runs with saved ranks -> how they differ on the same queries, with intervals and p-values."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from attrs import asdict, frozen

from pbgeval.metrics.names import UnknownMetricError, split
from pbgeval.metrics.paired import Difference, GroupDifferences, differences, holm
from pbgeval.metrics.student import ERROR_RATE
from pbgeval.report.figures import (
    LARGE,
    UNDEFINED,
    Tile,
    capital,
    decimals_of,
    model_of,
    rounded,
    short_title,
    usual_decimals,
)
from pbgeval.report.paired_runs import CompareOptions, PairedRuns
from pbgeval.report.run_differences import describe_difference, describe_left_out
from pbgeval.report.tables import (
    DataTable,
    Printed,
    all_in_latex,
    all_in_markdown,
    interval_line,
    unbroken,
    with_warnings,
)
from pbgeval.results.csv_tables import to_csv
from pbgeval.results.result import Result
from pbgeval.storage.json_files import differing
from pbgeval.storage.text import json_text


@frozen
class RelationDifferences:
    """The differences of one relation's queries."""

    relation: str
    relation_id: int
    num_queries: int
    differences: tuple[Difference, ...]


@frozen(eq=False, repr=False, kw_only=True)
class RunComparison(Printed):
    """What comparisons of two runs and of more have in common. They print as the tables of the command."""

    side: str  # head, tail, relation, both
    rank_type: str
    filter: str  # raw, filtered
    unit: str  # edge, chunk: what was drawn together
    clusters: str  # key: queries of one key are one cluster too; edge: units alone
    num_queries: int
    warnings: tuple[str, ...] = ()  # what to know before the figures are quoted, after the names of the runs

    @abstractmethod
    def tables(self) -> list[DataTable]:
        """Return the tables of the command."""

    @abstractmethod
    def _csv_rows(self) -> Iterator[dict[str, Any]]:
        """Return the rows of CSV without the conditions."""

    def _printed(self) -> list[DataTable]:
        return with_warnings(self.tables(), self.warnings)

    @property
    def title(self) -> str:
        """The conditions of all figures in a line."""
        return f"{self.num_queries:,} queries ({self.side}), {self.filter}, {self.rank_type} ranks"

    @property
    def tags(self) -> list[str]:
        """The conditions of all figures, as pages have them."""
        filtering = "filtered" if self.filter == "filtered" else "unfiltered"
        return [f"{self.num_queries:,} queries", filtering, f"{self.rank_type} ranks"]

    @property
    def conditions(self) -> dict[str, str]:
        """The same, in every row of the CSV."""
        return {name: getattr(self, name) for name in ("side", "filter", "rank_type", "unit", "clusters")}

    def to_dict(self) -> dict[str, Any]:
        """Return all of it, ready for JSON.

        Examples:
            >>> import pbgeval
            >>> sorted(pbgeval.compare("results/run", "results/other").to_dict())[:3]
            ['a', 'a_model', 'b']
        """
        return asdict(self)

    def to_format(self, form: str) -> str:
        """Return all of it as json or csv, or the tables as text, md or latex."""
        if form == "json":
            return json_text(self.to_dict())  # what is undefined is null
        if form == "csv":
            return to_csv([*self._csv_rows()])
        writers = {"text": unbroken, "md": all_in_markdown, "latex": all_in_latex}
        return writers[form](self.tables())


@frozen(eq=False, repr=False, kw_only=True)
class Comparison(RunComparison):
    """How run B differs from run A.

    Examples:
        >>> import pbgeval
        >>> comparison = pbgeval.compare("results/run", "results/other")
        >>> comparison["mrr"].direction, comparison["mean_rank"].direction  # 1: higher is better
        (1, -1)
    """

    a: str
    b: str
    a_model: str  # and its checkpoint and version, as far as known
    b_model: str
    settings: tuple[str, ...]  # that differ
    left_out: str  # how many evaluated edges the imports of the runs left out; empty if none
    differences: tuple[Difference, ...]  # corrected for their number
    relations: tuple[RelationDifferences, ...]  # each metric corrected for the number of relations; none without edges
    names: tuple[str, str] = ("A", "B")  # of the runs

    @property
    def names_with_letters(self) -> list[str]:
        """The runs' names, each with its letter in tables; letters alone where runs have no names."""
        return with_letters(self.names)

    def __getitem__(self, name: str) -> Difference:
        """Return the difference in a metric, by any of its names.

        Raises:
            KeyError: it was not compared.
        """
        found, key = {difference.metric: difference for difference in self.differences}, split(name).metric
        if key not in found:
            raise UnknownMetricError(f"no metric '{name}' in this comparison: expected one of {', '.join(found)}")
        return found[key]

    @property
    def condition_sentences(self) -> list[str]:
        """Sentences on the settings that differ, edges that imports left out, and keys that are ignored, if any."""
        return [
            *([f"Settings that differ: {'; '.join(self.settings)}."] if self.settings else []),
            *([f"{capital(self.left_out)}."] if self.left_out else []),
            *([KEYS_IGNORED] if self.clusters == "edge" else []),
        ]

    def tables(self) -> list[DataTable]:
        """Return the table of all metrics, and that of relations where there are any."""
        decimals = decimals_of_table(self.differences)
        lower = [short_title(of.metric) for of in self.differences if of.direction < 0]
        told = [f"Lower is better for {' and '.join(lower)}."] if lower else []
        if self.differences:
            told += ["p is not corrected.", *MEANING_OF_P]
        tables = [
            DataTable(
                f"{self.title}; {describe_runs(self)}",
                ("metric", *_COLUMNS, "p", "p (Holm)"),
                [
                    (short_title(of.metric), *cells_of(of, decimals), probability(of.p_value), _corrected(of))
                    for of in self.differences
                ],
                "\n".join([*told, *self.condition_sentences]),
                "all-metrics",
                lead=sentence_of_two(self, self.names_with_letters),
            )
        ]
        if self.relations and self.differences:
            at, shown = relations_to_show(self)
            decimals = decimals_of_table([of.differences[at] for of in shown])
            tables.append(
                DataTable(
                    f"{short_title(self.differences[at].metric)} by relation",
                    ("relation", "queries", *_COLUMNS, "p (Holm)"),
                    [
                        (
                            of.relation,
                            f"{of.num_queries:,}",
                            *cells_of(of.differences[at], decimals),
                            _corrected(of.differences[at]),
                        )
                        for of in shown
                    ],
                    f"The {len(shown)} relations with the smallest p-values; JSON and CSV have all."
                    if len(shown) < len(self.relations)
                    else "Smallest p-values first.",
                    "relation-differences",
                )
            )
        return tables

    def _csv_rows(self) -> Iterator[dict[str, Any]]:
        """Return a row per metric, and one per relation and metric."""
        folders = self.a, self.b
        runs = {
            f"run_{letter.lower()}": folder if name == letter else name
            for letter, name, folder in zip("AB", self.names, folders, strict=True)
        }
        parts: list[tuple[str, int | str, Comparison | RelationDifferences]] = [
            ("", "", self),
            *((of.relation, of.relation_id, of) for of in self.relations),
        ]
        return (
            {
                **runs,
                **self.conditions,
                "relation": relation,
                "relation_id": relation_id,
                "num_queries": part.num_queries,
                **asdict(of),
            }
            for relation, relation_id, part in parts
            for of in part.differences
        )


def compare(
    a: Result | str | PathLike[str],
    b: Result | str | PathLike[str],
    *,
    edge_paths: Sequence[str | PathLike[str]] | None = None,
    metrics: Sequence[str] | None = None,
    side: str = "both",
    rank_type: str = "realistic",
    filter: str | None = None,  # noqa: A002 - the word of metrics.json
    clusters: str = "key",
) -> Comparison:
    """Compare two runs query by query; differences are B - A.

    Nothing is scored; memory does not follow the number of edges. `docs/results.md` says what the figures mean.

    Args:
        a: the output directory of a finished run with `save_ranks`, or its report.
        b: the second run, of the same queries, filters and candidates.
        edge_paths: folders or files of the evaluated edges, as the runs have them; default: where A, or B, found them.
        metrics: mean_rank, mean_reciprocal_rank, hits_at_k by any of their names; default: these, k as in either run.
        side: head, tail or both.
        rank_type: of the ranks.
        filter: "raw" or "filtered"; default: filtered if the runs are.
        clusters: "key": queries of one key depend on each other, as do those of an edge; "edge": only the latter, which
            needs no edges (unless lists are sampled) and gives no figures per relation.

    Raises:
        ConfigError: an argument is wrong in itself.
        OutputError: a run is unfinished or has no ranks, or they differ in more than the model; says in what.
        StorageError: a file is missing or damaged.

    Examples:
        >>> import pbgeval
        >>> of_mrr = pbgeval.compare("results/run", "results/other", metrics=["mrr"])["mrr"]
        >>> of_mrr.low < of_mrr.difference < of_mrr.high
        True
    """
    options = CompareOptions(edge_paths, metrics, side, rank_type, filter, clusters)
    return compare_two(a, b, options)


def compare_two(
    a: Result | str | PathLike[str],
    b: Result | str | PathLike[str],
    options: CompareOptions,
    names: tuple[str, str] = ("A", "B"),
) -> Comparison:
    """Compare two runs as `compare` does."""
    pair = PairedRuns.open([a, b], options)
    stats = pair.stats([0], [1])
    whole = differences(stats, pair.metrics, by_group=False)
    settings = [of.document["provenance"]["settings"] for of in pair.reports]
    return Comparison(
        a=str(pair.runs[0].folder),
        b=str(pair.runs[1].folder),
        a_model=model_of(pair.reports[0]),
        b_model=model_of(pair.reports[1]),
        **pair.conditions,
        settings=tuple(describe_difference(name, *(of.get(name) for of in settings)) for name in differing(*settings)),
        left_out=describe_left_out(*(of.document for of in pair.reports)),
        num_queries=sum(of.num_queries for of in whole),
        differences=tuple(holm(whole[0].differences if whole else ())),  # one group, of all queries
        relations=_relations(pair, differences(stats, pair.metrics, by_group=True)) if pair.has_edges else (),
        names=names,
        warnings=pair.warnings(names),
    )


def _relations(pair: PairedRuns, groups: Sequence[GroupDifferences]) -> tuple[RelationDifferences, ...]:
    names = pair.runs[0].relation_names(max((of.group for of in groups), default=-1) + 1)
    columns = [holm([of.differences[number] for of in groups]) for number in range(len(pair.metrics))]
    return tuple(
        RelationDifferences(names[of.group], of.group, of.num_queries, tuple(column[place] for column in columns))
        for place, of in enumerate(groups)
    )


# A comparison -> tables.

MAX_RELATIONS = 20  # that a table shows: those with the smallest p-values
MIN_P = 1e-4  # smaller ones are written as below this
KEYS_IGNORED = "Keys are ignored (clusters = edge): where queries share a key, errors and p are too small."
_COLUMNS = ("A", "B", "B − A", "95% interval")
MEANING_OF_P = (
    "p (Holm) is the probability of a difference at least this large if the runs do not differ, corrected for the "
    f"number of rows by Holm's method. Below {ERROR_RATE} a difference is significant.",
    "Intervals are not corrected; n.s.: the interval leaves out 0, but the difference is not significant. "
    f"{UNDEFINED}: too few independent queries for an interval.",
    "Figures are of these runs; retrained models may differ.",
)


def describe_runs(comparison: Comparison) -> str:
    """Return each run's letter, its name if it has one, its folder, and its model where the models differ."""
    models, told = (comparison.a_model, comparison.b_model), []
    differ = len({*models}) > 1
    for letter, name, folder, model in zip("AB", comparison.names, (comparison.a, comparison.b), models, strict=True):
        told.append(f"{letter}: {f'{name}, ' if name != letter else ''}{folder}{f' ({model})' if differ else ''}")
    return ", ".join(told) + (f"; model of both: {models[0]}" if models[0] and not differ else "")


COMMON_NAMES = {"result", "results", "output"}  # of folders: they tell nothing


def names_of_folders(folders: Sequence[str | PathLike[str]]) -> list[str]:
    """Return the last parts of some paths, or the paths where these would be the same.

    A folder called `results` has the one that it is in before it.
    """
    paths = [Path(folder) for folder in folders]
    names = [
        f"{parent}/{path.name}" if path.name in COMMON_NAMES and (parent := path.absolute().parent.name) else path.name
        for path in paths
    ]
    return names if len({*names}) == len(names) else [*map(str, paths)]


def relations_to_show(comparison: Comparison) -> tuple[int, list[RelationDifferences]]:
    """Return the place of MRR, or of the first metric, and the relations with its smallest p-values."""
    names = [of.metric for of in comparison.differences]
    at = names.index("mean_reciprocal_rank") if "mean_reciprocal_rank" in names else 0

    def place(of: RelationDifferences) -> tuple[float, float]:
        p = of.differences[at].p_value
        return 2.0 if p is None else p, -abs(of.differences[at].difference)

    return at, sorted(comparison.relations, key=place)[:MAX_RELATIONS]


def difference_tiles(comparison: Comparison) -> list[Tile]:
    """Return the differences in MRR, hits and mean rank, or in the first metrics."""
    found = {of.metric: of for of in comparison.differences}
    tiles = []
    for of in [found[name] for name in LARGE if name in found] or [*found.values()][: len(LARGE)]:
        a, b, difference, interval = cells_of(of, decimals_of_table([of]))
        better = "B" if of.difference * of.direction > 0 else "A"
        told = f"{better} is significantly better" if of.is_significant else "no significant difference"
        told += "" if of.p_holm is None else f" (corrected p\u00a0{probability(of.p_holm)})".replace("< ", "<\u00a0")
        interval = interval_line(*interval.split(" to ")) if of.low is not None else "no interval"
        title = short_title(of.metric) + (" (lower is better)" if of.direction < 0 else "")
        tiles.append(Tile(f"{title}: B − A", difference, (f"A\u00a0{a}, B\u00a0{b}", interval, told)))
    return tiles


def with_letters(names: Sequence[str]) -> list[str]:
    """Return names with the letters of A and B behind them, letters alone where they are the names."""
    return [name if name == letter else f"{name} ({letter})" for name, letter in zip(names, "AB", strict=True)]


def sentence_of_two(comparison: Comparison, names: Sequence[str]) -> str:
    """Return by how much a run is ahead in MRR, or in the first metric, with its interval; and what others say.

    Args:
        comparison: of A and B.
        names: of A and of B.
    """
    if not comparison.differences:
        return ""
    main = _main(comparison.differences)
    is_b, lead, title = _gain(main) > 0, lead_of(main), short_title(main.metric)
    a, b, *_ = cells_of(main, decimals_of_table([main]))
    better, figures = (names[1], f"{b} against {a}") if is_b else (names[0], f"{a} against {b}")
    if main.is_significant:
        told = [f"{better} is significantly ahead by {lead} in {title} ({figures})"]
    elif main.only_nominally_significant:
        p = _both_p(main, comparison.differences)
        told = [f"{better} is ahead by {lead} in {title} ({figures}), but not significantly: p is {p}"]
    else:
        ahead = f"{better} is ahead by {lead}" if main.difference else f"the difference is {lead}"
        told = [f"{names[0]} and {names[1]} do not differ significantly in {title}: {ahead}"]
    others = [of for of in comparison.differences if of is not main]
    agree = [of for of in others if of.is_significant and main.is_significant and (_gain(of) > 0) == is_b]
    apart = [of for of in others if of.is_significant and of not in agree]
    for is_of_b in (True, False):
        found = [of for of in apart if (_gain(of) > 0) == is_of_b]
        told += [f"{names[is_of_b]} is significantly better in {_titles(found)}"] if found else []
    told += [f"also in {_titles(agree)}"] if agree else []
    open_ones = [of for of in others if not of.is_significant]
    told += [f"no significant difference in {_titles(open_ones)}"] if open_ones and main.is_significant else []
    return f"{'; '.join(told)}."


def lead_of(of: Difference) -> str:
    """Return by how much the better run is ahead, and its 95% interval: positive numbers are in its favor."""
    decimals = decimals_of_table([of])[usual_decimals(of.metric)]
    sign = -1 if of.difference < 0 else 1
    told = rounded(abs(of.difference), decimals)
    if of.low is None or of.high is None:
        return told
    low, high = (rounded(end, decimals) for end in sorted((sign * of.low, sign * of.high)))
    return f"{told} (95% interval {low} to {high})"


def _both_p(of: Difference, compared: Sequence[Difference]) -> str:
    """Return the p-value of one of several metrics, alone and corrected for their number."""
    tested = sum(other.p_value is not None for other in compared)
    alone = probability(of.p_value)
    return alone if tested == 1 else f"{alone} alone, {probability(of.p_holm)} corrected for {tested} metrics"


def _gain(of: Difference) -> float:
    """Return how much better B is."""
    return of.difference * of.direction


def _main(differences: Sequence[Difference]) -> Difference:
    return next((of for of in differences if of.metric == LARGE[0]), differences[0])


def _titles(found: Sequence[Difference]) -> str:
    return joined([short_title(of.metric) for of in found])


def joined(names: Sequence[str]) -> str:
    """Return names as a part of a sentence: a, b and c."""
    return " and ".join([*filter(None, [", ".join(names[:-1])]), *names[-1:]])


def decimals_of_table(rows: Sequence[Difference]) -> dict[int, int]:
    """Return the decimals of a table by those of other tables: enough to tell whether an end of an interval is 0."""
    found: dict[int, int] = {}
    for of in rows:
        usual = usual_decimals(of.metric)
        needed = decimals_of(of.standard_error, num_digits=2) if of.standard_error else 0
        found[usual] = max(found.get(usual, usual), needed)
    return found


def cells_of(of: Difference, decimals_by_usual: Mapping[int, int]) -> list[str]:
    """Return A, B, their difference and its interval; the decimals are those of `decimals_of_table`."""
    decimals, interval = decimals_by_usual[usual_decimals(of.metric)], UNDEFINED
    if of.low is not None and of.high is not None:
        interval = f"{rounded(of.low, decimals, '+')} to {rounded(of.high, decimals, '+')}"
    return [rounded(of.a, decimals), rounded(of.b, decimals), rounded(of.difference, decimals, "+"), interval]


def _corrected(of: Difference) -> str:
    return probability(of.p_holm) + ", n.s." * of.only_nominally_significant


def probability(p: float | None) -> str:
    """Return a p-value as text."""
    if p is None:
        return UNDEFINED
    return f"< {MIN_P:.4f}" if p < MIN_P else f"{p:.4f}"

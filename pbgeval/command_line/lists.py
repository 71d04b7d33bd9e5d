"""Commands for ranked lists that other programs wrote: `topk` and `types`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from pbgeval.command_line.options import Cutoffs, EdgeColumns, EdgeComment, EdgeDelimiter, RankTypeName
from pbgeval.command_line.printing import show
from pbgeval.errors import ConfigError

DEFAULT_BASE = 2.0  # of the exponential gain of types


def topk(
    test: Annotated[
        Path, typer.Option("--test", metavar="FILE", help="Edges to evaluate: text or Parquet, as for import-graph.")
    ],
    ranking: Annotated[
        Path, typer.Option("--ranking", metavar="FILE", help="Top-k lists in the format of AnyBURL and SAFRAN.")
    ],
    known: Annotated[
        list[Path] | None,
        typer.Option(
            "--known", metavar="FILE", help="Other known edges, for example training edges. Repeatable [default: none]."
        ),
    ] = None,
    edge_columns: EdgeColumns = None,
    delimiter: EdgeDelimiter = None,
    comment: EdgeComment = None,
    entities: Annotated[
        Path | None,
        typer.Option("--entities", metavar="FILE", help="Labels of all entities [default: those in the files]."),
    ] = None,
    filtering: Annotated[
        Literal["producer", "known", "none"],
        typer.Option("--filter", help="producer: already filtered; known: remove known answers; none: unfiltered."),
    ] = "producer",
    ties: Annotated[
        Literal["confidence", "order"],
        typer.Option("--ties", help="confidence: equal confidences tie; order: the position breaks ties."),
    ] = "confidence",
    absent: Annotated[
        Literal["bounds", "last", "zero"],
        typer.Option(
            "--absent",
            help="Rank of a true entity that is not listed. bounds: report an interval; last: the last rank; "
            "zero: no hit.",
        ),
    ] = "bounds",
    rank_type: Annotated[RankTypeName, typer.Option("--rank-type", help="Rank type of the headline.")] = "realistic",
    k: Cutoffs = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="JSON file for all metrics [default: print the table only]."
        ),
    ] = None,
) -> None:
    """Evaluate the top-k lists of a rule learner.

    Ranks are exact where the true entity is listed, and bounded where it is not.
    """
    from pbgeval.importing.edge_names import edge_names
    from pbgeval.metrics.given import Absent
    from pbgeval.models.topk import read_topk
    from pbgeval.report.console import ConsoleObserver
    from pbgeval.report.lists import topk_report, topk_table
    from pbgeval.stats.rank_types import RANK_TYPE_SYNONYMS
    from pbgeval.storage.edge_columns import EdgeForms
    from pbgeval.storage.writing import write_atomically

    forms = EdgeForms.parse(edge_columns or [], ["test", "known"], delimiter, comment)
    found = read_topk(
        ranking,
        test,
        known or [],
        names_of=lambda path: edge_names(
            path, forms.of(path, "test" if path == test else "known"), ConsoleObserver().warn
        ),
        entities=entities,
        filtering=filtering,
        ties=ties,
    )
    cutoffs = sorted(set(k or (1, 3, 5, 10)))
    settings = {"filter": filtering, "ties": ties, "absent": absent, "hits_at": cutoffs, "known": len(known or [])}
    report = topk_report(found, settings, Absent(absent), headline=RANK_TYPE_SYNONYMS[rank_type].value, cutoffs=cutoffs)
    if output is not None:
        write_atomically(output, report.to_json())
    show(topk_table(found, report))


def types(
    taxonomy: Annotated[
        Path, typer.Option("--taxonomy", metavar="FILE", help="Type hierarchy: type<TAB>depth<TAB>parent.")
    ],
    truth: Annotated[
        Path, typer.Option("--truth", metavar="FILE", help="True types: query<TAB>type<TAB>type..., or JSON.")
    ],
    ranking: Annotated[
        Path, typer.Option("--ranking", metavar="FILE", help="Ranked types, best first, in the same format.")
    ],
    k: Annotated[
        list[int] | None,
        typer.Option("-k", min=1, max=10**9, metavar="K", help="Cutoff of NDCG@k. Repeatable [default: 1, 3, 5, 10]."),
    ] = None,
    gain: Annotated[
        Literal["linear", "exponential"],
        typer.Option("--gain", help="Gain of a type at distance d. linear: 1 - d / depth; exponential: base^-d."),
    ] = "linear",
    discount: Annotated[
        Literal["jk", "standard"],
        typer.Option("--discount", help="Discount at position p. jk: log2(p) from 2 on; standard: log2(p + 1)."),
    ] = "jk",
    base: Annotated[
        float, typer.Option("--base", metavar="X", help="Base of the exponential gain; must be above 1.")
    ] = DEFAULT_BASE,
    as_published: Annotated[
        bool, typer.Option("--as-published", help="Count the root and repeated types, so that NDCG can exceed 1.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="JSON file for the result of each query [default: print the table only].",
        ),
    ] = None,
) -> None:
    """Evaluate rankings of entity types in a hierarchy (NDCG)."""
    from pbgeval.metrics.ndcg import DEFAULT_CUTOFFS, Discount, TypeProtocol, evaluate_types
    from pbgeval.metrics.taxonomy import Taxonomy, TypeGain
    from pbgeval.models.type_lists import read_type_lists
    from pbgeval.report.lists import type_document, type_table
    from pbgeval.storage.writing import write_atomically

    if not 1.0 < base < float("inf"):
        raise ConfigError(f"--base {base}: the base must be above 1")
    if base != DEFAULT_BASE and gain == "linear":
        raise ConfigError(f"--base {base} has no effect without --gain exponential; add it, or remove --base")
    protocol = TypeProtocol(TypeGain(gain), Discount(discount), base, as_published)
    cutoffs = sorted(set(k or DEFAULT_CUTOFFS))
    lists = read_type_lists(truth), read_type_lists(ranking)
    result = evaluate_types(Taxonomy.read(taxonomy), *lists, cutoffs, protocol)
    if output is not None:
        write_atomically(output, type_document(result, protocol))
    show(type_table(result, protocol))

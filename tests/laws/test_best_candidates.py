"""`save_topk`: the best candidates of every query, by a slow sort; the same for any number of workers."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

from pbgeval.notation import ENDS, Bucket
from pbgeval.scoring import block_sizes
from pbgeval.storage.row_files import open_query_file
from tests import reference
from tests.kit.graphs import Relation, TinyGraph
from tests.kit.on_disk import write_graph
from tests.laws.test_order_does_not_matter import result_in

SIZES = (7, 6)


def graph_with_ties() -> TinyGraph:
    """Two partitions; entities come in pairs with equal vectors, so that places must be settled by number."""
    source = random.Random(3)
    rows = [[source.choice([-0.5, 0.25, 1.0, 0.75]) for _ in range(3)] for _ in range(sum(SIZES) // 2 + 1)]
    vectors = [*rows, *rows][: sum(SIZES)]
    tables = [vectors[: SIZES[0]], vectors[SIZES[0] :]]
    buckets = {
        (lhs, rhs): [(source.randrange(SIZES[lhs]), 0, source.randrange(SIZES[rhs])) for _ in range(5)]
        for lhs in range(2)
        for rhs in range(2)
    }
    for edges in buckets.values():
        edges.append(edges[0])  # an edge that is evaluated twice
    return TinyGraph([Relation("likes", "user", "user", "none", {}, {})], {"user": tables}, {}, buckets)


@pytest.mark.one_case
@pytest.mark.parametrize("k", [1, 4, 20])
@pytest.mark.parametrize("team_size", [1, 3])
@pytest.mark.parametrize(("queries_per_block", "candidates_per_block"), [(1024, 2048), (3, 4)])
@pytest.mark.parametrize("leaves_out_known", [False, True])
def test_the_best_candidates_are_those_of_a_sort(
    k: int,
    team_size: int,
    queries_per_block: int,
    candidates_per_block: int,
    leaves_out_known: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where the queries of one key lie in several blocks."""
    monkeypatch.setattr(block_sizes.CPU, "queries", queries_per_block)
    monkeypatch.setattr(block_sizes.CPU, "candidates", candidates_per_block)
    graph = graph_with_ties()
    entities = [(part, row) for part, size in enumerate(SIZES) for row in range(size)]
    other = {(1, 0): [(row, 0, other) for row in range(SIZES[1]) for other in range(0, SIZES[0], 2)]}
    keys = {"candidates": "all", "save_topk": k, "filter_edges": [other], "topk_metrics": leaves_out_known}
    result_in(write_graph(graph, tmp_path / "data", **keys), team_size, tmp_path)

    answers = reference.known_edges(graph, graph.buckets)
    known = answers | reference.known_edges(graph, other)
    left_out = known - answers if leaves_out_known else set()
    for bucket, edges in graph.buckets.items():
        file = open_query_file(tmp_path, "topk", 0, Bucket(*bucket))
        for side in ENDS:
            best, name = file.read_side(side, 0, len(edges)), side.pick("lhs", "rhs")
            for row, edge in enumerate(edges):
                ends = reference.true_entities(graph, bucket, edge)
                others = [of for of in entities if reference.corrupt(ends, 0, name, of) not in left_out]
                _, scores = reference.edge_scores(graph, bucket, edge, name, others)
                ordered = sorted(zip(scores, others, strict=True), key=lambda pair: (-pair[0], pair[1]))[:k]
                columns = (best[of][row].tolist() for of in ("partition", "entity", "score", "known"))
                found = list(zip(*columns, strict=True))
                assert found[: len(ordered)] == [
                    (*of, score, of != ends[name] and reference.corrupt(ends, 0, name, of) in known)
                    for score, of in ordered
                ]
                assert {(of, math.isnan(score)) for _, of, score, _ in found[len(ordered) :]} <= {(-1, True)}
        table = (tmp_path / "topk" / "0" / f"topk_{bucket[0]}_{bucket[1]}.tsv").read_text(encoding="utf-8")
        assert leaves_out_known or 2 * len(edges) * min(k, sum(SIZES)) == len(table.splitlines()) - 1

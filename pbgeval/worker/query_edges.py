"""Bucket files -> all evaluated edges in memory."""

from __future__ import annotations

import numpy as np

from pbgeval.inputs.edges import parts_of_file
from pbgeval.passes.query_edges import EdgeSegment, QueryEdges
from pbgeval.passes.settings import EdgeOrigin
from pbgeval.worker.work import Bench


def read_query_edges(bench: Bench) -> QueryEdges:
    """Read all evaluated edges, by edge path, bucket and row."""
    segments: list[EdgeSegment] = []
    columns: list[list[np.ndarray]] = [[np.empty(0, np.int64)] for _ in range(4)]
    num_edges = 0
    for path_index, files in enumerate(bench.inputs.buckets):
        for bucket, file in sorted(files.items()):
            first = num_edges
            for _, start, stop in parts_of_file(file):
                if not bench.evaluated.any_between(path_index, bucket, start, stop):
                    continue
                block = bench.numberer.numbered(file, file.read(start, stop))
                kept = bench.evaluated.positions(block, path_index, bucket, start)
                for column, values in zip(columns, (start + kept, *block.columns(kept)), strict=True):
                    column.append(values)
                num_edges += len(kept)
            segments.append(EdgeSegment(EdgeOrigin(str(file.path), path_index, bucket), first, num_edges))
    row_E, lhs_E, rel_E, rhs_E = (np.concatenate(column) for column in columns)
    dynamic = bench.inputs.config.dynamic_relations
    return QueryEdges(bench.numberer.numbering, tuple(segments), row_E, lhs_E, rel_E, rhs_E, dynamic)

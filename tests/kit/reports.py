"""Folders for `kgeval-dist report`: real results whose names are full of markup, large ones, records of training."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.kit.case import TinyCase
from tests.kit.commands import evaluated

# What would run, fetch, close a tag or break a table if it were not escaped.
MARKUP = (
    "<img src=x onerror=console.error('ran')>",
    "</script><script>console.error('ran')</script>",
    "\"'&amp;|`*_[a](http://example.invalid/){{7*7}}$x^2$%#~\\",
    "</title></style><b>bold",
)
_RELATIONS = (
    {"lhs": "user", "rhs": "user", "operator": "none"},
    {"lhs": "user", "rhs": "user", "operator": "diagonal"},
    {"lhs": "user", "rhs": "tag", "operator": "translation"},
    {"lhs": "tag", "rhs": "user", "operator": "complex_diagonal", "all_negs": True},
)


def marked_up_case(root: Path) -> TinyCase:
    """Write a graph whose relations have names of markup."""
    relations = [{"name": name, **rest} for name, rest in zip(MARKUP, _RELATIONS, strict=True)]
    return TinyCase.write(root, relations=relations)


def marked_up_result(root: Path, *overrides: str, output: str = "<i>out & put") -> Path:
    """Evaluate it; return the output directory, whose name is full of markup too."""
    evaluated(marked_up_case(root), *overrides, output=output)
    return root / output


def large_result(root: Path, num_relations: int, num_partitions: int) -> Path:
    """Return the directory of a result with so many relations of long names, and partitions a side."""
    folder = marked_up_result(root)
    [first, *_] = rows_of(folder / "relations.csv")
    rows = ({**first, "relation": long_name(at), "relation_id": str(at)} for at in range(num_relations))
    write_rows(folder / "relations.csv", rows)
    [bucket, *_] = rows_of(folder / "buckets.csv")
    key = "both.realistic.mean_reciprocal_rank"
    places = itertools.product(range(num_partitions), repeat=2)
    write_rows(
        folder / "buckets.csv",
        (
            {**bucket, "lhs_partition": lhs, "rhs_partition": rhs, "num_edges": 1 + rhs, key: 1 / (1 + lhs + rhs)}
            for lhs, rhs in places
        ),
    )
    return folder


def long_name(at: int) -> str:
    """Return a name that HTML makes longer: of 91 characters or more."""
    return f'/<{at}>&"people/person/' + "nationality<" * 6


def write_records(folder: Path, *, num_passes: int = 5, metrics: Mapping[str, float] | None = None) -> Path:
    """Write what a training run has recorded, as PyTorch-BigGraph does: two buckets, a gap that shrinks."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for index in range(2 * num_passes):
        before, after = 0.25 + 0.01 * index, 0.5 + 0.005 * index
        figures = [{"count": 8, "metrics": metrics or {"mrr": value, "r1": 0.125}} for value in (before, after)]
        place = {"lhs_partition": index % 2, "rhs_partition": 0, "index": index, "stats": {"count": 9, "metrics": {}}}
        of_pass = {"epoch_idx": index // 2, "edge_path_idx": 0, "edge_chunk_idx": 0}
        lines.append({**place, "eval_stats_before": figures[0], "eval_stats_after": figures[1], **of_pass})
    (folder / "training_stats.json").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return folder


def make_incomplete(folder: Path, *, with_metrics: bool = True) -> None:
    """Turn a result into that of a run that is under way."""
    path = folder / "metrics.json"
    kept = ["schema_version", "provenance"]
    more: dict[str, Any] = {"complete": False}
    if with_metrics:
        kept += ["filter", "headline", "num_edges", "num_queries", "metrics", "intervals"]
        more["progress"] = {"units_done": 12, "units": 40}
    document = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({key: document[key] for key in kept} | more), encoding="utf-8")
    for name in ("buckets.csv", "metrics.jsonl", "rank_histogram.csv", "relations.csv", "run.json"):
        (folder / name).unlink(missing_ok=True)


def rows_of(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a CSV file."""
    first, *rest = rows
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(first), lineterminator="\n")
        writer.writeheader()
        writer.writerows([first, *rest])


def scalars_in(folder: Path) -> dict[str, dict[int, float]]:
    """Return the values of each tag of TensorBoard's event files, by step, as its own reader has them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder)).Reload()
    return {tag: {of.step: of.value for of in events.Scalars(tag)} for tag in events.Tags()["scalars"]}

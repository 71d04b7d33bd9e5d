from __future__ import annotations

import itertools
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from pbgeval.report.charts import (
    HEIGHT,
    MAX_CELLS,
    NUM_LEVELS,
    bin_edges,
    bucket_table,
    cumulative_chart,
    decades,
    distribution_table,
    heat_map,
    level_of,
    linear,
    ranks_by_side,
    share_chart,
)

KEY = "both.realistic.mean_reciprocal_rank"


def buckets(num_left: int, num_right: int, seed: int, num_paths: int = 1) -> list[dict[str, Any]]:
    """Rows of buckets.csv, a third of them without edges."""
    generator = np.random.default_rng(seed)
    return [
        {
            "edge_path": f"edges{path}",
            "lhs_partition": lhs,
            "rhs_partition": rhs,
            "num_edges": (count := int(generator.integers(0, 3)) * int(generator.integers(1, 50))),
            KEY: float(generator.random()) if count else None,
        }
        for path, lhs, rhs in itertools.product(range(num_paths), range(num_left), range(num_right))
    ]


def means_by_hand(rows: list[dict[str, Any]], block: int) -> dict[tuple[int, int], float | None]:
    """The mean of each cell, weighted by edges."""
    members = defaultdict(list)
    for row in rows:
        place = row["lhs_partition"] // block, row["rhs_partition"] // block
        members[place].append(((row[KEY] or 0.0) * row["num_edges"], row["num_edges"]))
    sums = {place: np.sum(of, axis=0).tolist() for place, of in members.items()}
    return {place: value / weight if weight else None for place, (value, weight) in sums.items()}


@pytest.mark.parametrize(
    ("num_left", "num_right", "num_paths", "block"),
    [(1, 1, 1, 1), (3, 7, 1, 1), (4, 4, 3, 1), (64, 1, 1, 1), (65, 65, 1, 2), (130, 5, 2, 3)],
)
def test_a_cell_is_the_mean_of_its_buckets_weighted_by_edges(
    num_left: int, num_right: int, num_paths: int, block: int
) -> None:
    rows = buckets(num_left, num_right, seed=num_left, num_paths=num_paths)
    expected = means_by_hand(rows, block)

    picture = heat_map(rows, KEY)

    assert picture is not None
    assert ("up to" in picture.note, len(expected)) == (block > 1, len(picture.boxes))
    assert max(-(-num_left // block), -(-num_right // block)) <= MAX_CELLS
    known = [mean for mean in expected.values() if mean is not None]
    for ((lhs, rhs), mean), cell in zip(sorted(expected.items()), picture.boxes, strict=True):
        assert f": {'–' if mean is None else f'{mean:.4f}'}, " in cell.title
        assert ("none" in cell.style, (rhs - 0.5, rhs + 0.5), (lhs - 0.5, lhs + 0.5)) == (mean is None, cell.x, cell.y)
        if mean is not None and min(known) < max(known):
            share = (mean - min(known)) / (max(known) - min(known))
            assert share * NUM_LEVELS - 1 - 1e-9 <= int(cell.style[-1]) <= share * NUM_LEVELS + 1e-9
    extent = picture.x.at(picture.x.high) - picture.x.at(picture.x.low)
    assert extent / -(-num_right // block) == pytest.approx((picture.y.end - picture.y.start) / -(-num_left // block))


def test_levels_begin_at_the_lowest_and_end_at_the_highest_value() -> None:
    assert [level_of(value, 0.25, 0.75) for value in (0.25, 0.5, 0.74, 0.75)] == [0, 4, 8, 8]


def test_the_table_of_buckets_has_those_with_edges_largest_first() -> None:
    rows = buckets(5, 4, seed=3, num_paths=2)
    table = bucket_table(rows, KEY)

    with_edges = sorted((row for row in rows if row["num_edges"]), key=lambda row: -row["num_edges"])
    expected = [
        (f"{row['lhs_partition']}, {row['rhs_partition']}", row["edge_path"], str(row["num_edges"]), f"{row[KEY]:.4f}")
        for row in with_edges
    ]
    assert list(table.rows) == expected


def histogram(ranks: dict[str, list[float]]) -> list[dict[str, Any]]:
    """Rows of rank_histogram.csv, in no particular order, and rows of another rank type beside them."""
    rows = []
    for side, of_side in ranks.items():
        for rank in sorted(set(of_side), reverse=True):
            row = {"side": side, "lower_edge": rank, "upper_edge": rank, "count": of_side.count(rank)}
            rows += [{**row, "rank_type": "realistic"}, {**row, "rank_type": "pessimistic", "count": 99}]
    return rows


RANKS = {"tail": [1.0, 1.5, 2.0, 4.5, 5.0, 9.5, 10.0, 1_000.0, 1_000.0], "head": [1.0] * 5 + [2.0, 200_000.0]}


def test_bins_hold_the_ranks_between_their_edges() -> None:
    sides = ranks_by_side(histogram(RANKS), "realistic")
    rows = distribution_table(sides).rows

    assert [of.side for of in sides] == ["head", "tail"]
    for row in rows:
        low, high = (int(part.replace(",", "")) for part in row[0].split(" to below "))
        for at, side in ((1, "head"), (4, "tail")):
            ranks = RANKS[side]
            inside, below = (sum(start <= rank < high for rank in ranks) for start in (low, 0))
            assert [f"{inside}", f"{inside / len(ranks):.4f}", f"{below / len(ranks):.4f}"] == row[at : at + 3]
    assert "1.0000" == rows[-1][3] == rows[-1][6]


def test_bars_are_as_high_as_shares_and_lines_end_at_all_queries() -> None:
    sides = ranks_by_side(histogram(RANKS), "realistic")
    bars, lines = share_chart(sides, "realistic"), cumulative_chart(sides, "realistic")

    first = bars.boxes[0]
    assert (first.title, first.y) == ("head, 1 to below 2: 71.43%", (0.0, pytest.approx(5 / 7)))
    for line in lines.lines:
        shares = [y for _, y in line.points]
        assert sorted(shares) == shares, "never fewer queries at a larger k"
        assert shares[-1] == 1.0
    [head, tail] = lines.lines
    assert head.points[0] == (0.0, pytest.approx(5 / 7)), "k = 1"
    assert [y for x, y in tail.points if x == pytest.approx(1.0)] == pytest.approx([7 / 9]), "k = 10 counts rank 10"


@pytest.mark.parametrize(
    ("highest", "edges"), [(1, [1, 2]), (1.5, [1, 2]), (2, [1, 2, 4]), (7.5, [1, 2, 4, 8]), (8, [1, 2, 4, 8, 16])]
)
def test_bins_double_so_bars_are_equally_wide_on_the_axis(highest: float, edges: list[int]) -> None:
    sides = ranks_by_side(histogram({"head": [1.0, highest], "tail": [1.0]}), "realistic")
    assert edges == bin_edges(sides)
    chart = share_chart(sides, "realistic")
    widths = [box.x[1] - box.x[0] for box in chart.boxes]
    assert widths == pytest.approx([widths[0]] * 2 * (len(edges) - 1))


@pytest.mark.parametrize(
    ("low", "high", "texts"),
    [
        (0.0, 1.0, ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        (0.0, 0.0, ["0.0", "0.2"]),
        (-0.013, 0.021, ["−0.02", "−0.01", "0.00", "0.01", "0.02", "0.03"]),
        (120.0, 1830.0, ["0", "500", "1,000", "1,500", "2,000"]),
        (0.3, 0.3, ["0.3", "0.4"]),
    ],
)
def test_a_vertical_axis_has_round_labels_around_its_values(low: float, high: float, texts: list[str]) -> None:
    axis = linear("MRR", low, high)

    assert texts == [text for _, text in axis.ticks]
    assert axis.low - 1e-9 <= low <= high <= axis.high + 1e-9, "multiples of a step are rounded"
    assert HEIGHT >= axis.at(axis.low) > axis.at(axis.high) >= 0, "values grow upwards"


def test_a_logarithmic_axis_ends_with_the_highest_value() -> None:
    axis = decades("k", 1_024.0)

    assert (["1", "10", "100", "1,000"], axis.at(axis.high)) == ([text for _, text in axis.ticks], axis.end)
    assert [text for _, text in decades("k", 2.0).ticks] == ["1"]
    assert len(decades("k", 2.0**40).ticks) <= 8

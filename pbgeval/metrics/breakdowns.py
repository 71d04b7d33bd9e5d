"""Statistics of groups of queries -> the rows of each breakdown's table: the group's members, then its metrics.

All but `entity_frequency` and `time` are unions of relations, so they follow from the statistics by relation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import add

import numpy as np
from attrs import field, frozen

from pbgeval.metrics.breakdown_names import GROUP_COLUMNS
from pbgeval.notation import Side, grouped
from pbgeval.stats.grouped import ENTITY_FREQUENCY, RELATION, TIME, GroupedStats
from pbgeval.stats.rank_stats import RankStats, by_label, rank_metrics

UNSEEN = "unseen"
CARDINALITIES = (UNSEEN, "1-1", "1-N", "M-1", "M-N")  # classes of `cardinality_classes`
FREQUENCY_CLASSES = (UNSEEN, "25", "50", "75", "100")  # see `worker.training_edges.frequency_classes`

Row = dict[str, str | float | int | None]
Group = tuple[str | int, ...]  # values of the group's columns
SideSums = dict[Side, RankStats]


@frozen(eq=False)
class GroupClasses:
    """The classes of relations; each sequence is indexed by relation id."""

    names: Sequence[str]
    types: Sequence[tuple[str, str]]  # left and right
    cardinality_R: np.ndarray | None = None  # int64: index in `CARDINALITIES`; None: `train_paths` were not counted
    frequency_R: np.ndarray | None = None  # int64: index in `FREQUENCY_CLASSES`; None: not counted
    groups: Mapping[str, Iterable[int]] = field(factory=dict)  # relations of each named group; groups may overlap
    time_bin: int = 1  # how many times a group of edges has


def breakdown_rows(name: str, grouped: GroupedStats, classes: GroupClasses, sides: Sequence[Side]) -> list[Row]:
    """Return the rows of a breakdown, ordered by group; only groups with queries, ranked or not.

    Args:
        name: a key of `GROUP_COLUMNS`.
        grouped: statistics by relation and, for `entity_frequency`, by class of the entity at each side.
        classes: of all relations.
        sides: the enabled ones; a disabled one has no columns.

    Returns:
        The group's columns first, then `<side>.<rank type>.<metric>` and `<side>.query_auc`. Undefined is None.

    Raises:
        ValueError: the breakdown needs classes that were not counted.
    """
    return [
        dict(zip(GROUP_COLUMNS[name], group, strict=True))
        | {
            f"{label}.{key}": value
            for label, stats in by_label(of_side, sides).items()
            for key, value in rank_metrics(stats.total, stats.layout.cutoffs, adjusted=True).items()
        }
        for group, of_side in _groups(name, grouped, classes).items()
        if any(bool(of_side[side].sums.any()) for side in sides)
    ]


def _groups(name: str, grouped: GroupedStats, classes: GroupClasses) -> dict[Group, SideSums]:
    """Return the sums of each group of a breakdown, in order."""
    if name == "time":
        width = classes.time_bin
        return {(at * width, (at + 1) * width): of_side for at, of_side in grouped.rows(TIME).items()}
    if name == "entity_frequency":
        return {
            (side.pick("lhs", "rhs"), FREQUENCY_CLASSES[of_class]): of_side
            for side, dimension in ENTITY_FREQUENCY.items()
            for of_class, of_side in grouped.rows(dimension).items()
        }
    rows = grouped.rows(RELATION)
    if name == "relation":
        return {(classes.names[rel], rel, *classes.types[rel]): of_side for rel, of_side in rows.items()}
    if name == "entity_types":
        return _unions(rows, {rel: classes.types[rel] for rel in rows})
    if name == "groups":  # a relation may be in several
        return {
            key: of_side
            for group, relations in sorted(classes.groups.items())
            for key, of_side in _unions(rows, {rel: (group,) for rel in relations if rel in rows}).items()
        }
    class_R, labels = {
        "cardinality": (classes.cardinality_R, CARDINALITIES),
        "relation_frequency": (classes.frequency_R, FREQUENCY_CLASSES),
    }[name]
    if class_R is None:
        raise ValueError("this breakdown needs the classes of relations, which follow from train_paths")
    by_class = _unions(rows, {rel: (int(class_R[rel]),) for rel in rows})
    return {(labels[int(of_class)],): of_side for (of_class,), of_side in by_class.items()}


def _unions(rows: Mapping[int, SideSums], group_of: Mapping[int, Group]) -> dict[Group, SideSums]:
    """Add up the relations of each group; groups in order."""
    members = grouped((group, rows[relation]) for relation, group in group_of.items())
    return {
        group: {side: reduce(add, [of_side[side] for of_side in members[group]]) for side in Side}
        for group in sorted(members)
    }

from __future__ import annotations

import pickle
from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pbgeval.metrics.breakdowns import CARDINALITIES, FREQUENCY_CLASSES
from pbgeval.notation import ENDS, EntityNumbering
from pbgeval.ranking.keys import CodeCounts, EdgeColumns
from pbgeval.worker.training_edges import SlotCounts, class_limits, frequency_classes
from tests.examples import examples

NUMBERING = EntityNumbering.from_sizes({("item", 0): 3, ("item", 1): 2, ("user", 0): 4, ("zone", 0): 0})
NUM_ENTITIES, NUM_RELATIONS = 9, 4
RANGES = {"item": range(5), "user": range(5, 9), "zone": range(0)}

edges = st.lists(st.tuples(st.integers(0, 8), st.integers(0, NUM_RELATIONS - 1), st.integers(0, 8)), max_size=40)


def blocks_of(of: list[tuple[int, int, int]], size: int) -> list[EdgeColumns]:
    columns = np.array(of, np.int64).reshape(-1, 3).T
    return [EdgeColumns(*columns[:, start : start + size].copy()) for start in range(0, len(of), size)]


def slow_cardinality(training: list[tuple[int, int, int]], rel: int) -> str:
    of = [edge for edge in training if edge[1] == rel]
    if not of:
        return "unseen"
    tails_per_head = len(of) / len({lhs for lhs, _, _ in of})
    heads_per_tail = len(of) / len({rhs for _, _, rhs in of})
    return f"{'M' if heads_per_tail > 1.5 else '1'}-{'N' if tails_per_head > 1.5 else '1'}"


def slow_classes(frequencies: list[int]) -> list[str]:
    """Four slices of the sorted items; all items of one frequency go where the first of them is."""
    order = sorted(frequencies)
    bounds = [int(share * len(order)) for share in (0, 0.25, 0.5, 0.75, 1)]
    classes = []
    for frequency in frequencies:
        at = order.index(frequency)
        quarter = max(k for k in range(4) if bounds[k] <= at)
        classes.append(("25", "50", "75", "100")[quarter] if frequency else "unseen")
    return classes


@settings(max_examples=examples(50))
@given(
    edges,
    st.sets(st.integers(0, 8)).map(sorted),
    st.permutations([(side, slot) for side in ENDS for slot in range(4)]),
    st.integers(1, 50),
)
def test_counts_and_classes_equal_slow_ones_whatever_the_blocks_and_order(training, evaluated, order, block_size):
    numbers, counts = np.array(evaluated, np.int64), SlotCounts.zero(NUM_RELATIONS, NUMBERING)
    for side, slot in order:
        blocks = blocks_of(training, block_size)
        of = {"numbering": NUMBERING, "num_relations": NUM_RELATIONS, "evaluated": numbers}
        counts += pickle.loads(pickle.dumps(SlotCounts.of_slot(side, slot, blocks, **of)))  # as another worker's

    relation_frequency = [sum(edge[1] == rel for edge in training) for rel in range(NUM_RELATIONS)]
    assert relation_frequency == counts.relation_frequency().tolist()
    assert np.array_equal(counts.edges_2R[0], counts.edges_2R[1])
    cardinality = [CARDINALITIES[i] for i in counts.cardinality_classes()]
    assert [slow_cardinality(training, rel) for rel in range(NUM_RELATIONS)] == cardinality
    limits = class_limits(CodeCounts.of_codes(counts.relation_frequency().copy()))
    found = frequency_classes(limits, counts.relation_frequency())
    assert slow_classes(relation_frequency) == [FREQUENCY_CLASSES[i] for i in found]
    for side in ENDS:
        frequency = Counter(side.pick(lhs, rhs) for lhs, _, rhs in training)
        assert [frequency[number] for number in evaluated] == counts.entity_frequency(side, numbers).tolist()
        for entity_type, of_type in RANGES.items():
            frequencies = [frequency[number] for number in of_type]
            limits = counts.entity_limits(side, entity_type)
            classes = frequency_classes(limits, np.array(frequencies, np.int64))
            assert slow_classes(frequencies) == [FREQUENCY_CLASSES[i] for i in classes]

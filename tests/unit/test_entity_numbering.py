from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pbgeval.notation import EntityNumbering

tables = st.dictionaries(
    st.sampled_from(["item", "user", "Tag"]), st.lists(st.integers(0, 4), min_size=1, max_size=12), min_size=1
)


@given(tables, st.randoms(use_true_random=False))
def test_numbers_follow_types_by_name_and_partitions_in_order(of, chance):
    """With more than ten partitions: they are ordered as numbers, not as names."""
    sizes = [((name, part), size) for name, parts in of.items() for part, size in enumerate(parts)]
    chance.shuffle(sizes)
    numbering = EntityNumbering.from_sizes(dict(sizes))
    slots = [(name, part) for name in sorted(of) for part in range(len(of[name]))]
    places = [(*slot, row) for slot in slots for row in range(of[slot[0]][slot[1]])]

    assert (slots, len(places), places, [slots.index(place[:2]) for place in places]) == (
        list(numbering.slots),
        numbering.num_entities,
        [numbering.place_of(number) for number in range(len(places))],
        numbering.slot_of(np.arange(len(places))).tolist(),
    )
    for slot, (name, part) in enumerate(slots):
        before = sum(place[:2] in slots[:slot] for place in places)
        assert (before, before + of[name][part]) == numbering.range_of_slot(slot)
        assert before == numbering.offset(name, part)
    for name in of:
        numbers = [number for number, place in enumerate(places) if place[0] == name]
        assert numbers == list(range(*numbering.range_of_type(name)))

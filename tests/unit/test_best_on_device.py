"""The best candidates that are kept on a GPU, against those that a CPU keeps."""

from __future__ import annotations

from unittest import mock

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pbgeval.ranking.query_group_state import TopCandidates
from pbgeval.scoring import device_scores
from pbgeval.scoring.deferred import Deferred
from tests.examples import examples

SCORES = [-np.inf, -1.0, -0.0, 0.0, 0.5, np.inf]
NUM_KEYS, NUM_ENTITIES = 3, 14


def deliver(lists: TopCandidates, device: str) -> None:
    deferred = Deferred(torch.device(device))
    lists.defer(deferred)
    deferred.deliver()


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    k=st.integers(1, NUM_ENTITIES + 2),
    seed=st.integers(0, 1 << 30),
    order=st.permutations(range(3)),
    leaves_out=st.booleans(),
    at_a_time=st.integers(1, NUM_KEYS),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_a_device_keeps_the_candidates_that_a_cpu_keeps(kernel_device, k, seed, order, leaves_out, at_a_time, dtype):
    """Ties, infinities, blocks in any order, known answers, those left out, and lists packed in between."""
    generator = np.random.default_rng(seed)
    scores_KC = generator.choice(SCORES, (NUM_KEYS, NUM_ENTITIES)).astype(dtype)
    is_known_KC = generator.random((NUM_KEYS, NUM_ENTITIES)) < 0.4
    entity_id_C = np.sort(generator.choice(1 << 40, NUM_ENTITIES, replace=False))
    parts = np.split(np.arange(NUM_ENTITIES), np.sort(generator.integers(1, NUM_ENTITIES, 2)))

    def is_answer(key, entity_id):
        return (key + entity_id) % 2 == 0

    lists = [TopCandidates.zero((NUM_KEYS, k), is_answer if leaves_out else None) for _ in range(2)]
    for part in (parts[at] for at in order):
        for first in range(0, NUM_KEYS if part.size else 0, at_a_time):
            keys = slice(first, first + at_a_time)
            block = torch.from_numpy(scores_KC[keys][:, part].copy())
            known = is_known_KC[keys][:, part].nonzero()
            with mock.patch.object(device_scores, "supports", return_value=False):
                lists[0].add(first, block, entity_id_C[part], known)
            with mock.patch.object(device_scores, "supports", return_value=True):
                lists[1].add(first, block.to(kernel_device), entity_id_C[part], known)
        if seed % 2:
            deliver(lists[1], kernel_device)
            lists[1].pack()
    deliver(lists[1], kernel_device)
    on_host, on_device = (one.pack()[0] for one in lists)
    assert np.array_equal(on_host, on_device)

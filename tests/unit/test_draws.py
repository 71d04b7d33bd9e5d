from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pbgeval.notation import Bucket, Side
from pbgeval.ranking.draws import FRACTION, HOST, DegreeWeights, DrawStream, fractions, uniform_below
from tests.examples import examples

# Frozen: these numbers may never change, or results of different versions do not compare.
FROZEN = [
    (
        (0, 0, Bucket(0, 0), Side.LHS),
        0x80A91771D6290052E8FB71CCC84FA8A3,
        0,
        [0x7CFC283A69789EE5, 0x1BFCE36232CD7363, 0x6C3F5B16D65C7289, 0xA471E049F534140F, 0x061D2D2D71BA32FF],
        1000,
        [488, 109, 422, 642, 23],
    ),
    (
        (7, 1, Bucket(2, 3), Side.RHS),
        0xA756EC4BF87A8D52C620CCC3DC9B3450,
        10**12 + 3,
        [0x089AF425E5038869, 0x4E78FC6E737A6B3B, 0x2579B94B09EC084A],
        1 << 32,
        [144372773, 1316551790, 628734283],
    ),
    (
        (0, 0, Bucket(0, 0), Side.LHS, "auc"),
        0x484FB249B320853E7E0E5CC3E4FF552C,
        1,
        [0x81929D9EBB49D90C, 0x22CFFCE6B998D517],
        10,
        [5, 1],
    ),
]


@pytest.mark.parametrize(("of", "key", "address", "expected", "size", "offsets"), FROZEN)
def test_frozen_words_and_offsets(of, key, address, expected, size, offsets):
    stream = DrawStream.of(*of)

    assert (key, expected, offsets, offsets) == (
        stream.key,
        stream.words(address, len(expected)).tolist(),
        uniform_below(stream.words_on(HOST, address, len(offsets)), size).tolist(),
        [word * size >> 64 for word in expected],
    )


def test_every_seed_path_bucket_side_and_purpose_has_a_stream_of_its_own():
    of = (0, 1, Bucket(2, 3), Side.LHS)
    others = [
        (5, 1, Bucket(2, 3), Side.LHS),
        (0, 2, Bucket(2, 3), Side.LHS),
        (0, 1, Bucket(3, 2), Side.LHS),
        (0, 1, Bucket(2, 3), Side.RHS),
        (0, 1, Bucket(2, 3), Side.LHS, "auc"),
        (0, 12, Bucket(3, 3), Side.LHS),
        (1, 2, Bucket(3, 3), Side.LHS),
    ]

    keys = {DrawStream.of(*each).key for each in (of, *others)}

    assert 1 + len(others) == len(keys)


@given(st.integers(0, 1 << 50), st.lists(st.integers(0, 9), max_size=8))
def test_words_have_addresses_whatever_the_blocks(start, blocks):
    stream = DrawStream(3)
    parts, at = [], start
    for length in blocks:
        parts += stream.words(at, length).tolist()
        at += length

    assert stream.words(start, sum(blocks)).tolist() == parts


words_64 = st.sampled_from([0, 1, (1 << 32) - 1, 1 << 32, (1 << 64) - 1]) | st.integers(0, (1 << 64) - 1)


@given(st.lists(words_64, min_size=1), st.integers(1, (1 << 63) - 1))
def test_words_are_scaled_by_an_exact_multiply_shift(words, size):
    given = torch.from_numpy(np.array(words, np.uint64).view(np.int64))

    assert uniform_below(given, size).tolist() == [word * size >> 64 for word in words]
    assert given.numpy().view(np.uint64).tolist() == words, "they stay as they are"


@given(st.lists(words_64))
def test_a_fraction_is_the_first_53_bits_of_a_word(words):
    given = torch.from_numpy(np.array(words, np.uint64).view(np.int64))

    assert fractions(given).tolist() == [(word >> 11) / (1 << 53) for word in words]


keys_128 = st.sampled_from([0, 3, (1 << 31) | (1 << 63) | (1 << 95) | (1 << 127), (1 << 128) - 1])


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])  # interpreted
@given(keys_128 | st.integers(0, (1 << 128) - 1), st.integers(0, 1 << 50), st.integers(0, 70))
def test_a_gpu_draws_the_words_of_numpy(kernel_device, key, address, count):
    stream = DrawStream(key)

    found = stream.words_on(torch.device(kernel_device), address, count)

    assert found.device.type == kernel_device
    assert found.cpu().numpy().view(np.uint64).tolist() == stream.words(address, count).tolist()


@pytest.mark.parametrize(("address", "count"), [(0, 4 * 256), (3, 4 * 256), ((1 << 34) - 6, 2000), (7, 0)])
def test_a_gpu_draws_the_words_of_numpy_in_several_programs(kernel_device, address, count):
    stream = DrawStream.named("test")

    found = stream.words_on(torch.device(kernel_device), address, count).cpu().numpy()

    np.testing.assert_array_equal(found.view(np.uint64), stream.words(address, count))


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])  # interpreted
@given(st.lists(words_64), st.integers(1, 300) | st.integers(1, (1 << 63) - 1))
def test_a_gpu_scales_words_as_a_cpu_does(kernel_device, words, size):
    given = torch.from_numpy(np.array(words, np.uint64).view(np.int64)).to(kernel_device)

    assert uniform_below(given, size).tolist() == [word * size >> 64 for word in words]
    assert uniform_below(given[1:], size).tolist() == [word * size >> 64 for word in words[1:]]


@pytest.mark.parametrize(("power", "unit"), [(1.0, 1), (2.0, 1), (0.5, FRACTION), (0.75, FRACTION)])
def test_entities_weigh_their_degree_to_a_power_and_an_integral_one_is_exact(power: float, unit: int) -> None:
    degrees = np.array([4, 1, 9, 4, 1_000_000])
    weights = DegreeWeights.of_degrees(np.arange(5), degrees, power, "all")

    assert np.diff(weights.cumulative_P.numpy(), prepend=0).tolist() == [
        round(int(of) ** power * unit) for of in degrees
    ]

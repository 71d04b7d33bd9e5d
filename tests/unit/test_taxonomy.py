"""The file of a hierarchy -> distances and gains, and what is refused."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pbgeval.metrics.taxonomy import Taxonomy, TypeGain
from tests.kit.refusals import faults_of

DATA = Path(__file__).resolve().parents[1] / "reference_data" / "types"


def written(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def ancestors(name: str, parents: dict[str, list[str]]) -> set[str]:
    """All above a type, by walking up; the root among them."""
    found = set(parents.get(name, []))
    for parent in parents.get(name, []):
        found |= ancestors(parent, parents)
    return found


def slow_distance(one: str, other: str, parents: dict[str, list[str]], depths: dict[str, int]) -> int | None:
    is_related = one == other or one in ancestors(other, parents) or other in ancestors(one, parents)
    return abs(depths[one] - depths[other]) if is_related else None


@st.composite
def hierarchies(draw):
    """Types below the root "r", each with one to three parents that come before it: (parents, depths)."""
    parents: dict[str, list[str]] = {}
    depths = {"r": 0}
    for number in range(draw(st.integers(1, 9))):
        above = draw(st.lists(st.sampled_from(sorted(depths)), min_size=1, max_size=3, unique=True))
        parents[f"t{number}"] = above
        depths[f"t{number}"] = max(depths[parent] for parent in above) + draw(st.integers(1, 2))
    return parents, depths


@given(hierarchies(), st.data(), st.booleans())
def test_related_types_and_gains_are_those_of_the_definition(tmp_path_factory, hierarchy, data, has_root_line):
    parents, depths = hierarchy
    lines = [f"{name}\t{depths[name]}\t{parent}" for name, above in parents.items() for parent in above]
    random.Random(0).shuffle(lines)
    lines += ["r\t0\t"] * has_root_line
    path = written(tmp_path_factory.mktemp("taxonomy") / "t.tsv", "type\tdepth\tparent", *lines)
    if not has_root_line and len({up for above in parents.values() for up in above} - parents.keys()) != 1:
        return
    taxonomy = Taxonomy.read(path)
    true = data.draw(st.lists(st.sampled_from(sorted(parents)), max_size=3))
    near = {name: {slow_distance(name, one, parents, depths) for one in true} - {None} for name in parents}
    expected = {name: min(distances) for name, distances in near.items() if distances}

    related_n, distance_n = taxonomy.related([taxonomy.find(name) for name in true])

    assert {taxonomy.names[at]: int(d) for at, d in zip(related_n, distance_n, strict=True)} == expected
    height = max(depths.values())
    distances = np.array(sorted(expected.values()), np.int64)
    assert [pytest.approx(1 - d / height) for d in distances] == taxonomy.gains(distances, TypeGain.LINEAR).tolist()
    assert [pytest.approx(3.0**-d) for d in distances] == taxonomy.gains(distances, "exponential", 3.0).tolist()
    branch = any(slow_distance(a, b, parents, depths) is not None for a in set(true) for b in set(true) - {a})
    assert branch == taxonomy.share_a_branch([taxonomy.find(name) for name in true])


def test_the_root_may_have_a_line_or_none_and_the_header_may_be_missing(tmp_path: Path) -> None:
    with_all = Taxonomy.read(DATA / "taxonomy.tsv")
    lines = (DATA / "taxonomy.tsv").read_text().splitlines()[2:]
    bare = Taxonomy.read(written(tmp_path / "t.tsv", *lines, ""))
    packed = tmp_path / "t.tsv.gz"
    packed.write_bytes(gzip.compress(("\ufeff" + "\r\n".join(lines)).encode()))

    assert ("thing", with_all.names, 7) == (bare.root, bare.names, bare.max_depth)
    assert (bare.names, None, None) == (Taxonomy.read(packed).names, with_all.find("thing"), with_all.find("nothing"))
    assert Taxonomy.read(written(tmp_path / "t.tsv", "r\t0", "a\t1\tr")).root == "r"  # an editor took its tab
    with pytest.raises(ValueError, match="base: expected a number above 1, got 1"):
        bare.gains(np.array([1]), "exponential", 1.0)


@pytest.mark.parametrize(
    ("lines", "faults"),
    [
        (["type\tdepth\tparent"], ["{path}: expected a line for each type below the root"]),
        (["r\t0\t"], ["{path}: expected a line for each type below the root"]),
        (["a\t1\tr", "b 2 a"], ["{path}:2: expected type, depth and parent, with tabs between, found 'b 2 a'"]),
        (["a\t1\tr", "b\ttwo\ta"], ["{path}:2: expected a depth, a whole number from 0, found 'two'"]),
        (["a\t1\tr", "b\t-1\ta"], ["{path}:2: expected a depth, a whole number from 0, found '-1'"]),
        (["a\t1\tr", "a\t2\tr"], ["{path}:2: expected depth 1 of 'a' as in an earlier line, found 2"]),
        (["a\t1\tr", "b\t1\t"], ["{path}:2: expected a parent of 'b', as only the root (depth 0) has none"]),
        (["r\t0\t", "s\t0\t", "a\t1\tr"], ["{path}:2: expected one root (depth 0), 'r', found another, 's'"]),
        (["r\t0\tz", "a\t1\tr"], ["{path}:1: expected no parent of the root 'r' (depth 0), found 'z'"]),
        (["r\t0\t", "a\t1\tr", "b\t2\tq"], ["{path}:3: expected a parent with a line of its own, or the root 'r'"]),
        (["a\t1\tr", "b\t2\tq"], ["{path}:2: expected a parent with a line of its own, or the root 'r', of 'b'"]),
        (["a\t1\tr", "b\t1\ta"], ["{path}:2: expected a depth of 'b' above that of its parent 'a', 1, found 1"]),
        (["a\t1\ta"], ["{path}:1: expected a hierarchy, found a type that is its own ancestor: a > a"]),
        (["c\t1\tr", "a\t2\tb", "b\t3\ta"], ["expected a hierarchy, found a type that is its own ancestor: "]),
        (["a\tx\tr", "b\tx\tr", "c\ty\tr"], ["{path}:2: expected a depth", "{path}:3: expected a depth"]),
    ],
)
def test_what_is_no_hierarchy_is_refused_with_its_lines(tmp_path: Path, lines: list[str], faults: list[str]) -> None:
    path = written(tmp_path / "t.tsv", *lines)

    for expected, found in zip(faults, faults_of(lambda: Taxonomy.read(path)), strict=True):
        assert expected.format(path=path) in found

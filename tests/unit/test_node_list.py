"""Slurm's short lists of hosts."""

from __future__ import annotations

import pytest

from pbgeval.cluster.node_list import expand_node_list


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n1", ["n1"]),
        ("n[1-3,7]", ["n1", "n2", "n3", "n7"]),
        ("a1,b[01-02]", ["a1", "b01", "b02"]),
        ("b[08-11],a", ["b08", "b09", "b10", "b11", "a"]),
        ("rack[1-2]n[0,5]", ["rack1n0", "rack1n5", "rack2n0", "rack2n5"]),
        ("gpu-[1-2]-ib.site", ["gpu-1-ib.site", "gpu-2-ib.site"]),
    ],
)
def test_a_list_is_expanded_in_its_order(text: str, hosts: list[str]) -> None:
    assert hosts == expand_node_list(text)


@pytest.mark.parametrize("text", ["", "n[1-", "n[1-x]", "n1,", ",n1", "n]1[", "n[]"])
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a "):
        expand_node_list(text)

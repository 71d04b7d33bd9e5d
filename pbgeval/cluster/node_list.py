"""Slurm's short form of a list of hosts -> the hosts. `scontrol show hostnames` need not be there."""

from __future__ import annotations

import re

_PIECES = re.compile(r"((?:[^,\[\]]|\[[^\[\]]*\])+)(?:,|$)")  # commas within brackets separate numbers, not hosts
_FIRST_BRACKET = re.compile(r"([^\[\]]*)\[([^\[\]]*)\](.*)")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def expand_node_list(text: str) -> list[str]:
    """Return the hosts of `n[1-3,7]` or `a1,b[01-02]`, in its order.

    Raises:
        ValueError: it is no such list.
    """
    pieces = _PIECES.findall(text)
    if not pieces or ",".join(pieces) != text:
        raise ValueError(f"not a list of nodes: {text!r}")
    return [host for piece in pieces for host in _hosts_of(piece)]


def _hosts_of(piece: str) -> list[str]:
    match = _FIRST_BRACKET.fullmatch(piece)
    if match is None:
        return [piece]
    before, ranges, after = match.groups()
    ends = _hosts_of(after) if after else [""]
    return [before + number + end for part in ranges.split(",") for number in _numbers_of(part) for end in ends]


def _numbers_of(part: str) -> list[str]:
    match = _RANGE.fullmatch(part)
    if match is None:
        raise ValueError(f"not a range of nodes: {part!r}")
    low, high = match[1], match[2] or match[1]
    return [str(number).zfill(len(low)) for number in range(int(low), int(high) + 1)]

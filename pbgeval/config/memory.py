"""The text of `max_memory` -> bytes."""

from __future__ import annotations

import re
from fractions import Fraction

from pbgeval.errors import ConfigError

_UNITS = {
    **{f"{prefix}b": 1000**power for power, prefix in enumerate(("", "k", "m", "g", "t"))},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate(("k", "m", "g", "t"), start=1)},
    "": 1,
}
_AMOUNT = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?) ?([a-z]*)", re.ASCII)
_LARGEST = 2**63 - 1


def parse_memory(text: str) -> int:
    """Read an amount of memory: bytes, or a number with a unit such as 800MB, 1.5 GB (1000s) or 2GiB (1024s).

    Returns:
        Bytes, rounded down, at least 1.

    Raises:
        ConfigError: If it is no such amount, or none at all.
    """
    match = _AMOUNT.fullmatch(text.strip().lower())
    if match is None or match[2] not in _UNITS:
        raise ConfigError(f"expected an amount of memory such as '800MB', '1.5GB' or '2GiB', got {text[:60]!r}")
    num_bytes = int(Fraction(match[1]) * _UNITS[match[2]])
    if not 1 <= num_bytes <= _LARGEST:
        raise ConfigError(f"expected an amount of memory from 1 byte to 2**63 - 1 bytes, got {text[:60]!r}")
    return num_bytes

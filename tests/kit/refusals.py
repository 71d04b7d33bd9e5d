"""What a call that is refused says: faults of a line each."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pbgeval.errors import EvalError


def faults_of(call: Callable[[], object], kind: type[EvalError] = EvalError) -> list[str]:
    """Return the faults that a call raises."""
    with pytest.raises(kind) as caught:
        call()
    assert not [fault for fault in caught.value.faults if "\n" in fault]
    return list(caught.value.faults)


def fault_of(call: Callable[[], object], kind: type[EvalError] = EvalError) -> str:
    """Return the only fault that a call raises."""
    (fault,) = faults_of(call, kind)
    return fault

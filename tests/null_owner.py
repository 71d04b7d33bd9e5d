"""The owner of an output directory that no other run uses."""

from __future__ import annotations

from typing import Any


class NullOwner:
    is_held = True

    def acquire(self) -> None: ...
    def release(self) -> None: ...
    def check(self) -> None: ...
    def say(self, message: str) -> None: ...


def null_owner() -> Any:
    return NullOwner()

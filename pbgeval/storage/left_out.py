"""Read and write what an import left out of a folder of edges: `left_out.json` beside its buckets.

There is such a file only where an edge was left out: a folder of PyTorch-BigGraph's has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import asdict, frozen

from pbgeval.errors import StorageError
from pbgeval.storage.json_files import read_object
from pbgeval.storage.shapes import COUNT, Keys, misfits
from pbgeval.storage.text import json_text, plural
from pbgeval.storage.writing import write_atomically

LEFT_OUT = "left_out.json"
UNKNOWN = "unknown.tsv"  # the edges that it counts, in the same folder


@frozen
class LeftOut:
    """Counts of the edges that a list had and its folder has not."""

    num_read: int
    num_left_out: int
    num_unknown_entities: int  # distinct names
    num_unknown_relations: int

    @property
    def unknown_names(self) -> str:
        """Return how many names the dictionaries lack, in words."""
        counts = (
            (self.num_unknown_entities, "unknown entity", "unknown entities"),
            (self.num_unknown_relations, "unknown relation", ""),
        )
        return " and ".join(plural(count, one, many) for count, one, many in counts if count)

    def write(self, folder: Path) -> None:
        """Write the file; nothing where no edge was left out.

        Raises:
            OutputError: it cannot be written.
        """
        if self.num_left_out:
            write_atomically(folder / LEFT_OUT, json_text(asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> LeftOut | None:
        """Return what was left out of a folder; None where nothing was, or no record says so.

        Raises:
            StorageError: the file cannot be read or is of another form.
        """
        path = folder / LEFT_OUT
        if not path.exists():
            return None
        found = read_object(path, "what an import left out")
        for misfit in misfits(found, Keys(dict.fromkeys(cls.__annotations__, COUNT))):
            raise StorageError(f"{path}: {misfit}; import the edges again")
        return cls(**{name: found[name] for name in cls.__annotations__})


def num_left_out(document: Mapping[str, Any], *keys: str) -> int:
    """Return how many edges the paths of some keys lack according to a result: its section `left_out`."""
    counts = document.get("left_out") or {}
    return sum(sum(counts.get(key, ())) for key in keys)

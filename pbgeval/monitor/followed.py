"""What is followed edge by edge -> a file beside the records, with which a run that goes on tests as if unbroken.

The first line is JSON: the pass after which it was written, a digest of its figures, and what there is of each bucket.
The int32 arrays follow.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np
from attrs import astuple, evolve, frozen

from pbgeval.monitor.records import PassDetails, PassKey
from pbgeval.notation import Bucket
from pbgeval.storage.json_files import digest_of, parse_json
from pbgeval.storage.shapes import COUNT, TEXT, Items, Keys, misfits
from pbgeval.storage.text import read_bytes, unreadable
from pbgeval.storage.writing import write_atomically

Where: TypeAlias = tuple[int, int, Bucket]  # edge path, edge chunk, bucket


@frozen(eq=False)
class Followed:
    """Reciprocal ranks of a bucket's held-out edges over the visits so far, 16 bytes an edge.

    In the fixed point of `clusters`, both sides added up; smoothed as in `persistence`, rounded down.
    """

    after_E: np.ndarray  # int32, at the last visit
    gained_E: np.ndarray
    lost_E: np.ndarray
    num_teeth: int
    epoch: int  # of the last visit
    order: int  # of the edges, as `HeldOut` has it
    best_E: np.ndarray | None = None  # int32, after the pass to keep; None: not known

    @classmethod
    def with_visit(
        cls, so_far: Followed | None, epoch: int, order: int, before_E: np.ndarray, after_E: np.ndarray
    ) -> Followed:
        """Add a visit."""
        if so_far is None:
            none = np.empty(0, np.int32)
            return cls(after_E.astype(np.int32), none, none, 0, epoch, order)
        gained_E, lost_E = after_E - before_E, so_far.after_E - before_E
        if so_far.num_teeth:
            gained_E, lost_E = (so_far.gained_E + gained_E) >> 1, (so_far.lost_E + lost_E) >> 1
        after_E, gained_E, lost_E = (of.astype(np.int32) for of in (after_E, gained_E, lost_E))
        return cls(after_E, gained_E, lost_E, so_far.num_teeth + 1, epoch, order, so_far.best_E)

    def keep(self, epoch: int) -> Followed:
        """Take the pass of this epoch for the one to keep."""
        return evolve(self, best_E=self.after_E if self.epoch == epoch else None)

    def has_edges(self, order: int, num_edges: int) -> bool:
        """Tell whether these edges, in this order, are those that are followed."""
        return (self.order, len(self.after_E)) == (order, num_edges)


def followed_file(folder: Path, worker: int) -> Path:
    """Return the file that a worker writes."""
    return folder / f"followed.{worker}.bin"


def write_followed(
    path: Path, key: PassKey, details: PassDetails, num_workers: int, followed: Mapping[Where, Followed]
) -> None:
    """Write what is followed after a pass, whose figures `details` has.

    Raises:
        OutputError: it cannot be written (permissions, a full disk).
    """
    arrays = {
        where: [of.after_E, of.gained_E, of.lost_E, *([] if of.best_E is None else [of.best_E])]
        for where, of in followed.items()
    }
    buckets = [
        {
            "place": [*where[:2], *where[2]],
            **{"num_teeth": of.num_teeth, "epoch": of.epoch, "order": of.order},
            "sizes": [len(array) for array in arrays[where]],
        }
        for where, of in followed.items()
    ]
    header = json.dumps({**_of_pass(key, details, num_workers), "buckets": buckets})
    parts = (array.astype("<i4").tobytes() for of in arrays.values() for array in of)
    write_atomically(path, (part for of in ([f"{header}\n"], parts) for part in of))


def _of_pass(key: PassKey, details: PassDetails, num_workers: int) -> dict[str, object]:
    """Return what tells a pass from others, also from one of the same epoch that was trained again."""
    return {"pass": [*astuple(key)], "figures": digest_of(dict(details.after)), "num_workers": num_workers}


_COUNTS = Items(COUNT)
_BUCKET = Keys({"place": _COUNTS, "sizes": _COUNTS, **dict.fromkeys(("num_teeth", "epoch", "order"), COUNT)})
_HEADER = Keys({"pass": _COUNTS, "figures": TEXT, "num_workers": COUNT, "buckets": Items(_BUCKET)})


def read_followed(path: Path, key: PassKey, details: PassDetails, num_workers: int) -> dict[Where, Followed]:
    """Read what was followed after a pass.

    Raises:
        StorageError: it cannot be read, was damaged, or is of another pass or number of workers.
    """
    with unreadable(
        path, "expected the edge-by-edge history of a monitor, found", "", (OSError, ValueError, TypeError)
    ):
        line, _, data = read_bytes(path).partition(b"\n")
        header = parse_json(line)
        for misfit in misfits(header, _HEADER):
            raise ValueError(misfit)
        sizes = [size for of in header["buckets"] for size in of["sizes"]]
        if len(data) != 4 * sum(sizes):
            raise ValueError(f"{len(data)} bytes in the place of {4 * sum(sizes)}")
        if any(header[name] != value for name, value in _of_pass(key, details, num_workers).items()):
            raise ValueError("that of another epoch or number of workers")
        arrays = iter(np.split(np.frombuffer(data, "<i4").astype(np.int32), np.cumsum(sizes)[:-1]))
        followed = {}
        for of in header["buckets"]:
            after_E, gained_E, lost_E, *best = (next(arrays) for _ in of["sizes"])
            of_teeth = len(after_E) if of["num_teeth"] else 0
            if of["sizes"] != [len(after_E), of_teeth, of_teeth, *[len(after_E)] * len(best[:1])]:
                raise ValueError(f"arrays of {of['sizes']} edges")
            path_index, chunk, lhs, rhs = of["place"]
            followed[path_index, chunk, Bucket(lhs, rhs)] = Followed(
                after_E, gained_E, lost_E, of["num_teeth"], of["epoch"], of["order"], *best
            )
        return followed

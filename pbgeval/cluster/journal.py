"""Results of finished units on the disk: written once, checked when read, so that a run can go on where it stopped.

An entry is the result of some units together: names of units and arrays of integers, stored blind, as this module knows
neither what they count nor how units are cut. Each is a file of its own, so any number of writers on a shared file
system need no lock:

    line 1   "pbgeval journal 1 " and the SHA-256 of all bytes after the line
    line 2   JSON: digest of what determines the result, names of the units, type and length of each array
    rest     the arrays, little-endian, one after the other

A file is there whole or not at all; what has been damaged since is seen by its checksum. Beside the entries each writer
appends to `log-<writer>.jsonl` when it starts and finishes a unit.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from attrs import define, field

from pbgeval.errors import OutputError
from pbgeval.storage.writing import Check, Content, append_line, output_faults, remove_files, write_atomically

MAGIC = b"pbgeval journal 1 "
SUFFIX = ".unit"


class DamagedEntryError(Exception):
    """A file of the journal is not what was written."""


class ForeignEntryError(Exception):
    """A file of the journal holds units of another run, or of another version of the program."""


def writer_name(host: str) -> str:
    """Return a name for this process that no other has, in file names."""
    safe = "".join(letter if letter.isalnum() else "_" for letter in host)
    return f"{safe}-{os.getpid()}-{uuid.uuid4().hex[:6]}"


@define
class Journal:
    """The journal of one run, as one process sees it.

    Its folder is made once, as the run begins: with a finished run it goes, and no late worker brings it back.
    """

    folder: Path
    digest: str  # of everything that determines a unit's result
    writer: str
    check: Check = lambda: None  # that this run still may write, as `Claim.check`
    _num_written: int = field(default=0, init=False)

    def entries(self) -> list[str]:
        """Return the names of the files that hold units, in an order that all workers agree on."""
        return sorted(path.name for path in self.folder.glob(f"*{SUFFIX}") if not path.name.startswith("."))

    def write(self, units: Sequence[str], arrays: Sequence[np.ndarray]) -> str:
        """Write the result of some units, durably and at once; return the name of the entry.

        Args:
            units: their names.
            arrays: integers (n,).

        Raises:
            IncompleteError: the claim is lost.
            OutputError: the file cannot be written (a full disk).
        """
        self.check()
        least = (min(int(array.min(initial=0)), -1 - int(array.max(initial=0))) for array in arrays)
        kinds = (np.min_scalar_type(low).newbyteorder("<") for low in least)  # that hold all values, little-endian
        narrow = [array.astype(kind) for array, kind in zip(arrays, kinds, strict=True)]
        payload = [array.data.cast("B") for array in narrow if array.size]
        described = [[array.dtype.str, len(array)] for array in narrow]
        header = json.dumps({"digest": self.digest, "units": list(units), "arrays": described}).encode() + b"\n"
        checksum = hashlib.sha256(header)
        for part in payload:
            checksum.update(part)
        path = self.folder / f"{self.writer}-{self._num_written:06d}{SUFFIX}"
        content: list[Content] = [MAGIC, checksum.hexdigest(), "\n", header, *payload]
        write_atomically(path, content, self.check)
        self._num_written += 1
        return path.name

    def read(self, entry: str) -> tuple[list[str], list[np.ndarray]]:
        """Return the units of an entry and its arrays, int64 (n,), by the name of its file.

        Raises:
            DamagedEntryError: the file is truncated or changed.
            ForeignEntryError: it is whole, and of other units.
            OutputError: it cannot be read.
        """
        path = self.folder / entry
        with output_faults(path, "read this file"):
            content = path.read_bytes()
        first, _, rest = content.partition(b"\n")
        if first != MAGIC + hashlib.sha256(rest).hexdigest().encode():
            raise DamagedEntryError(f"{path}: the checksum does not match the content")
        line, _, payload = rest.partition(b"\n")
        header = json.loads(line)
        if header["digest"] != self.digest:
            raise ForeignEntryError(f"{path}: of digest {header['digest'][:8]}")
        arrays, at = [], 0
        for dtype, length in header["arrays"]:
            arrays.append(np.frombuffer(payload, np.dtype(dtype), length, at).astype(np.int64))
            at += length * np.dtype(dtype).itemsize
        return header["units"], arrays

    def readable(self, entries: Iterable[str]) -> Iterator[tuple[list[str], list[np.ndarray]]]:
        """Yield what `read` returns of some entries; those that it refuses are left to the run that resumes."""
        for entry in entries:
            with suppress(DamagedEntryError, ForeignEntryError, OutputError):
                yield self.read(entry)

    def remove(self, entry: str) -> None:
        """Remove an entry: its units will be computed again."""
        remove_files(self.folder, [entry])

    def log(self, event: str, **facts: object) -> None:
        """Append to this writer's log what happens now: for example the start of a unit.

        Raises:
            IncompleteError: the claim is lost, and with it perhaps the journal: it must not come back.
            OutputError: the log cannot be written.
        """
        self.check()
        line = {"time": round(time.time(), 3), "event": event, "writer": self.writer, **facts}
        append_line(self.folder / f"log-{self.writer}.jsonl", json.dumps(line))

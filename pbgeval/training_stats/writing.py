"""Records -> lines at the end of a file, one write each; a crash leaves at most a cut last line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Protocol

from attrs import define, field

from pbgeval.errors import OutputError
from pbgeval.files import append_line, make_folder
from pbgeval.training_stats.records import PassRecord, VisitRecord


class Sink(Protocol):
    """What is handed each record of a training run as it is made."""

    def append(self, record: VisitRecord | PassRecord) -> None:
        """Take a record.

        Raises:
            OutputError: it cannot be written.
        """
        ...


@define
class StatsFile:
    """A file that one process appends to; it is made with the first record."""

    path: Path
    _begun: bool = field(default=False, init=False)  # the last line is whole

    def append(self, record: VisitRecord | PassRecord) -> None:
        """Add a line.

        Raises:
            OutputError: it cannot be written (permissions, a full disk).
        """
        line = json.dumps(record.to_json(), allow_nan=False)
        # What a crash or a full disk has cut off must not swallow this line too.
        begun, self._begun = self._begun, False
        if not begun:
            make_folder(self.path.parent)
        append_line(self.path, line if begun or _ends_a_line(self.path) else f"\n{line}")
        self._begun = True


def _ends_a_line(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            if file.seek(0, os.SEEK_END) == 0:
                return True
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"
    except FileNotFoundError:
        return True
    except OSError as error:
        raise OutputError(f"{path}: expected to add to this file, got: {error.strerror or error}") from error

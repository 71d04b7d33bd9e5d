"""`python -m pbgeval` is the command `kgeval-dist`."""

import gc
import os
import sys

from pbgeval.cluster.signals import exit_on_signals
from pbgeval.cluster.surroundings import (
    check_encoding,
    check_room,
    check_threads,
    check_working_directory,
    restore_sigchld,
    standard_files,
)
from pbgeval.errors import LaunchError

# Imports and tables make many objects, none of them garbage: a collection takes a tenth of a short command's time.
OBJECTS_BETWEEN_COLLECTIONS = 100_000
# How long a thread of numpy's OpenBLAS waits for work before it sleeps, log2 of cycles. The default is 26: each thread
# spins for 0.04 s once numpy is imported.
OPENBLAS_THREAD_TIMEOUT = 20


def main() -> None:
    """Run the command; signals end it with status 75 from here on."""
    with exit_on_signals(), standard_files():
        if sys.stderr is None:  # closed by the shell: what is written there must not go to standard output
            sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - for as long as the process lives
        try:
            check_threads(os.environ)
            check_encoding(sys.getfilesystemencoding())
            check_room(0, os.environ)
            check_working_directory()
        except LaunchError as error:
            sys.exit(str(error))
        restore_sigchld()
        gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
        os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", str(OPENBLAS_THREAD_TIMEOUT))
        from pbgeval.cli import main as command

        try:
            command()
        finally:
            # Python's last collection would take another tenth of a short command's time, and memory goes with the
            # process. Long commands keep it: duckdb, or a model's library, may complain of objects that are not freed.
            if "torch" not in sys.modules:
                gc.freeze()


if __name__ == "__main__":
    main()

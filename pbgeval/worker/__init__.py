"""One worker's part of a run: read `run.py` first."""

from pbgeval.worker.context import Outcome, Work
from pbgeval.worker.run import do_work, work_as_local_worker

__all__ = ["Outcome", "Work", "do_work", "work_as_local_worker"]

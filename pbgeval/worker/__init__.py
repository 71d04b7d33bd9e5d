"""One worker's part of a run: read `run.py` first."""

from pbgeval.worker.run import do_work, work_as_local_worker
from pbgeval.worker.work import Outcome, Work

__all__ = ["Outcome", "Work", "do_work", "work_as_local_worker"]

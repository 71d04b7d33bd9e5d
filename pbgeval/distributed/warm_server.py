"""Imported by the server of `warm_start.py` before all else: it must outlive the signals that end a run.

Schedulers and terminals send them to every process of a job. Workers leave their journals in order then; the server
is the parent of workers, and ends when there is nobody left to serve. What it imports stays, so it does not look for
garbage among it; workers do again, but not there (`become_worker`).
"""

import gc
import signal

from pbgeval.distributed.signals import SIGNALS_TO_END

for _number in (signal.SIGQUIT, *SIGNALS_TO_END):
    signal.signal(_number, signal.SIG_IGN)
gc.disable()

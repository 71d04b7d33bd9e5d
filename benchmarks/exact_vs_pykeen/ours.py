"""Runs one evaluation of pbgeval in this process and prints, as JSON, its times, start-up apart, peak memory, MRR.

Its command line: `OMP_NUM_THREADS=2 python ours.py CONFIG OUTPUT [KEY=VALUE]...`.
"""

import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from pbgeval.cluster.environment import variables_of_torch

BEGUN = time.perf_counter()
os.environ.update(variables_of_torch(os.environ, local_workers=False))  # as the command does, before torch is imported

import torch  # noqa: E402

import pbgeval.results.document  # noqa: E402, F401 - what evaluate imports late
import pbgeval.worker.sweep as sweep  # noqa: E402
from pbgeval import evaluate, load_config  # noqa: E402
from pbgeval.ranking.backend import load_compiled  # noqa: E402


def main() -> None:
    """Time one evaluation; everything is imported, and the compiled loops loaded, before the clock starts."""
    load_compiled(torch.device("cpu"), torch.float32, with_products=True)
    gc.collect()  # of what imports leave; it would come at some moment of the evaluation
    startup_seconds = time.perf_counter() - BEGUN
    config = load_config(Path(sys.argv[1]), sys.argv[3:])
    seconds_of_sweep: list[float] = []
    rank = sweep._rank  # the second sweep, all of it: reading candidates, products, counts, known answers, the sample

    def timed(*arguments: Any) -> Any:  # noqa: ANN401 - whatever it takes and returns
        begun = time.perf_counter()
        result = rank(*arguments)
        seconds_of_sweep.append(time.perf_counter() - begun)
        return result

    sweep._rank = timed
    begun = time.perf_counter()
    report = evaluate(config, output=Path(sys.argv[2]), workers=1, device="cpu")
    seconds = time.perf_counter() - begun
    print(
        json.dumps(
            {
                "seconds": seconds,
                "startup_seconds": startup_seconds,
                "sweep_seconds": sum(seconds_of_sweep),
                "peak_bytes": _peak_bytes(),
                # not among the metrics of a run that asks for others
                "mean_reciprocal_rank": report.document["metrics"].get("both.realistic.mean_reciprocal_rank"),
                "mean_rank": report["both.realistic.mean_rank"],
            }
        )
    )


def _peak_bytes() -> int:
    """Return the peak resident memory of this process."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))


if __name__ == "__main__":
    main()

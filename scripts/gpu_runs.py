"""Whole evaluations of `gpu_check`, by `pbgeval.evaluate` as users call it, beside the CPU and a plain torch loop.

Nothing is prepared or set but files: the start-up check runs as it does for users, and what it decides stays.
"""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gpu_stages
import h5py
import numpy as np
import torch
from attrs import evolve, frozen

from pbgeval import Report, evaluate, load_config

FORMAT_VERSION = 1
SMALLER = 10  # a trace and the count of synchronisations take a job that is smaller by this
EXACT = {"precision": "exact"}
QUERIES_PER_BLOCK, CANDIDATES_PER_BLOCK = 4096, 16384  # of the plain torch loop


@frozen
class Job:
    """What is evaluated."""

    num_edges: int
    num_partitions: int
    entities_of_partition: int
    dimension: int
    settings: dict[str, Any]
    has_cpu_run: bool = True

    def smaller(self) -> Job:
        """Return the same with fewer edges."""
        return evolve(self, num_edges=max(self.num_edges // SMALLER, 1))


def jobs(smoke: bool) -> dict[str, Job]:
    """Return the jobs by name, in the order in which they are run."""
    sampled = {"candidates": "sampled", "num_batch_negs": 100, "num_uniform_negs": 100}
    everything = {"candidates": "all"}
    if smoke:
        few = {"candidates": "sampled", "num_batch_negs": 5, "num_uniform_negs": 5}
        return {
            "sampled": Job(60, 2, 40, 8, few),
            "sampled, exact": Job(60, 2, 40, 8, few | EXACT),
            "all": Job(10, 1, 80, 8, everything),
            "all, exact": Job(10, 1, 80, 8, everything | EXACT),
            "partition": Job(20, 2, 40, 8, {"candidates": "partition"}),
        }
    return {
        "sampled": Job(10_000_000, 4, 250_000, 100, sampled),
        "sampled, exact": Job(10_000_000, 4, 250_000, 100, sampled | EXACT, has_cpu_run=False),
        "all": Job(10_000, 1, 1_000_000, 128, everything),
        "all, exact": Job(10_000, 1, 1_000_000, 128, everything | EXACT, has_cpu_run=False),
        "partition": Job(20_000, 4, 250_000, 100, {"candidates": "partition"}),
        "all, 200,000 queries": Job(100_000, 1, 1_000_000, 128, everything, has_cpu_run=False),
        "all, exact, 200,000 queries": Job(100_000, 1, 1_000_000, 128, everything | EXACT, has_cpu_run=False),
    }


@contextlib.contextmanager
def files(job: Job) -> Iterator[Path]:
    """Write the files of a job into a temporary folder; yield its config."""
    folder = Path(tempfile.mkdtemp(prefix="gpu-check-"))
    try:
        yield _write(folder, job)
    finally:
        shutil.rmtree(folder)


def _write(folder: Path, job: Job) -> Path:
    random = np.random.default_rng(0)
    for name in ("edges", "entity", "checkpoint"):
        (folder / name).mkdir()
    for partition in range(job.num_partitions):
        rows = random.standard_normal((job.entities_of_partition, job.dimension), dtype=np.float32)
        _write_arrays(folder / "checkpoint" / f"embeddings_all_{partition}.v1.h5", embeddings=rows)
        count = folder / "entity" / f"entity_count_all_{partition}.txt"
        count.write_text(f"{job.entities_of_partition}\n", encoding="utf-8")
    _write_arrays(folder / "checkpoint" / "model.v1.h5")
    (folder / "checkpoint" / "checkpoint_version.txt").write_text("1\n", encoding="utf-8")
    write_edges(folder, job)
    settings = {
        "entity_path": str(folder / "entity"),
        "edge_paths": [str(folder / "edges")],
        "checkpoint_path": str(folder / "checkpoint"),
        "entities": {"all": {"num_partitions": job.num_partitions}},
        "relations": [{"name": "all", "lhs": "all", "rhs": "all", "operator": "none"}],
        "dimension": job.dimension,
        "global_emb": False,
        "comparator": "dot",
        "precision": "float32",
        **job.settings,
    }
    path = folder / "config.py"
    path.write_text(f"def get_torchbiggraph_config():\n    return {settings!r}\n", encoding="utf-8")
    return path


def write_edges(folder: Path, job: Job) -> None:
    """Write the edges of a job, over others that are there."""
    random = np.random.default_rng(1)
    buckets = [(lhs, rhs) for lhs in range(job.num_partitions) for rhs in range(job.num_partitions)]
    for at, (lhs, rhs) in enumerate(buckets):
        num_edges = (at + 1) * job.num_edges // len(buckets) - at * job.num_edges // len(buckets)
        ends = [random.integers(job.entities_of_partition, size=num_edges) for _ in range(2)]
        edges = {"lhs": ends[0], "rel": np.zeros(num_edges, np.int64), "rhs": ends[1]}
        _write_arrays(folder / "edges" / f"edges_{lhs}_{rhs}.h5", **edges)


def _write_arrays(path: Path, **arrays: np.ndarray) -> None:
    with h5py.File(path, "w") as file:
        file.attrs["format_version"] = FORMAT_VERSION
        if not arrays:
            file.create_group("model")
        for name, array in arrays.items():
            file.create_dataset(name, data=array)


def run_on_device(config: Path, device: torch.device) -> dict[str, Any]:
    """Evaluate twice, as a process that has compiled nothing yet and as one that has, and say where the time went."""
    found: dict[str, Any] = {}
    for name in ("first", "second"):
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
        stages = gpu_stages.Stages()
        seconds, report = _evaluated(config, device.type, stages)
        found[name] = {
            "seconds": round(seconds, 3),
            "seconds_by_stage": {stage: round(value, 3) for stage, value in sorted(stages.seconds.items())},
            "calls_by_stage": dict(stages.calls),
            "seconds_beside": {stage: round(value, 3) for stage, value in sorted(stages.beside.items())},
        }
    if device.type == "cuda":
        found["peak_memory_bytes"] = torch.cuda.max_memory_allocated(device)
    run = report.run
    found["mrr"] = report["mrr"]
    found["devices"] = run["devices"]
    found["kernels"] = run["workers"][0]["kernels"]
    found["self_check_passed"] = run["workers"][0]["self_check_passed"]
    return found


def run_on_cpu(config: Path, device_mrr: float) -> dict[str, Any]:
    """Evaluate once on the CPU of the same host, with one worker and all cores, and compare the figure."""
    seconds, report = _evaluated(config, "cpu")
    difference = abs(float(report["mrr"] or 0.0) - device_mrr)
    # Last bits of float32 scores differ between devices, so near-ties may fall otherwise.
    assert difference <= 1e-5, f"MRR {device_mrr} on the device, {report['mrr']} on the CPU"
    return {"seconds": round(seconds, 3), "cores": len(os.sched_getaffinity(0)), "mrr_difference": difference}


def exact_figures(config: Path, device: torch.device) -> dict[str, Any]:
    """Evaluate with known answers, and return all figures."""
    return dict(
        _evaluated(config, device.type, overrides=[f"filter_paths={config.parent / 'edges'}"])[1].document["metrics"]
    )


def trace_on_device(config: Path) -> dict[str, Any]:
    """Count launches, synchronisations by line, and the share of time in which the GPU is busy."""
    work = partial(_evaluated, config, "cuda")
    work()  # what is compiled or loaded once is no part of it
    return {**gpu_stages.trace(work), "synchronisations": gpu_stages.synchronisations(work)}


def plain_torch_loop(job: Job, device: torch.device) -> dict[str, Any]:
    """Time what a user would write: a resident table, products, comparisons, sums; no filter, no ties."""
    table_ND = torch.randn(job.entities_of_partition * job.num_partitions, job.dimension, device=device)
    query_QD = torch.randn(2 * job.num_edges, job.dimension, device=device)
    true_Q = torch.randn(2 * job.num_edges, device=device)

    def ranks() -> torch.Tensor:
        rank_Q = torch.ones(len(query_QD), dtype=torch.int64, device=device)
        for start in range(0, len(query_QD), QUERIES_PER_BLOCK):
            queries = slice(start, start + QUERIES_PER_BLOCK)
            for candidate_CD in torch.split(table_ND, CANDIDATES_PER_BLOCK):
                scores_QC = query_QD[queries] @ candidate_CD.T
                rank_Q[queries] += (scores_QC > true_Q[queries].unsqueeze(1)).sum(1)
        return rank_Q

    return {"seconds": round(_seconds(ranks, device), 4)}


def _evaluated(
    config: Path, device: str, stages: gpu_stages.Stages | None = None, overrides: Sequence[str] = ()
) -> tuple[float, Report]:
    gc.collect()
    output = config.parent / "result"
    with contextlib.nullcontext() if stages is None else stages.timed():
        begun = time.perf_counter()
        report = evaluate(load_config(config, overrides), output=output, workers=1, device=device)
        seconds = time.perf_counter() - begun
    shutil.rmtree(output)
    return seconds, report


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    begun = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begun

"""Where an evaluation spends its time: seconds by stage on the host, and launches, copies and waits on a GPU.

`Stages` times functions of the package, each of which belongs to a stage, without changing the package: a stage within
another counts only as itself. On a GPU rows are read and copied by a thread beside the one that counts: its seconds are
told apart. `trace` runs some work once more under torch's profiler and finds out for each kernel
which stage launched it. `synchronisations` counts the lines that wait for the GPU.
"""

from __future__ import annotations

import functools
import importlib
import json
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

# Functions and methods by stage, as "module:name" or "module:Class.name".
STAGES: dict[str, tuple[str, ...]] = {
    "read": (
        "pbgeval.storage.edges:BucketFile._read",
        "pbgeval.inputs.partitions:PartitionHolder._load",
        "pbgeval.inputs.edges:EdgeNumberer.numbered",
        "pbgeval.inputs.partitions:read_rows",
    ),
    "copy": ("pbgeval.inputs.partitions:_start_copy",),
    "prepare": (
        "pbgeval.scoring.entities:EntityTable.check",
        "pbgeval.scoring.entities:EntityTable.rows",
        "pbgeval.scoring.entities:EntityTable.range_of_rows",
        "pbgeval.scoring.comparators:Comparator.prepare_queries",
        "pbgeval.scoring.comparators:Comparator.prepare_candidates",
        "pbgeval.ranking.query_group_state:QueryGroupState.prepare",
        "pbgeval.ranking.sampled:_rows",
        "pbgeval.scoring.self_check:check_kernels",
    ),
    "count": (
        "pbgeval.ranking.sampled:score_chunks",
        "pbgeval.ranking.cpu_backend:CpuBackend.count_lists",
        "pbgeval.ranking.ranking_pass:rank",
        "pbgeval.ranking.ranking_pass:rank_given",
    ),
    "pairs": ("pbgeval.ranking.exact:signs_of",),
    "lists": (
        "pbgeval.ranking.sampled:make_list",
        "pbgeval.scoring.device_lists:marks",
        "pbgeval.ranking.auc_sampling:AucSampling.words",
        "pbgeval.ranking.auc_sampling:AucSampling.cells",
        "pbgeval.worker.known:KnownOfBuckets.select_unit",
        "pbgeval.worker.known:join_all",
    ),
    "statistics": (
        "pbgeval.worker.record:add_side",
        "pbgeval.worker.known:KeyFrequencies.look_up",
        "pbgeval.worker.known:count_keys",
    ),
    "report": ("pbgeval.results.document:make_result",),
}
COMPILER = ("triton.runtime.jit", "JITFunction", "_do_compile")
COMPILE, OTHER = "compile", "other"
PREFIX = "stage: "
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


class Stages:
    """Seconds on the host by stage, while `timed` is entered."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.beside: defaultdict[str, float] = defaultdict(float)  # of other threads, within a stage of this one
        self.calls: Counter[str] = Counter()
        self._thread = threading.get_ident()
        self._of_thread = threading.local()

    @contextmanager
    def timed(self) -> Iterator[Stages]:
        """Time the functions of all stages, and the rest as `other`."""
        undo: list[tuple[Any, str, Any]] = []
        for stage, names in STAGES.items():
            for name in names:
                _replace(name, functools.partial(self._wrapped, stage), undo)
        if (compiler := _compiler()) is not None:
            _set(compiler, COMPILER[2], self._wrapped(COMPILE, getattr(compiler, COMPILER[2])), undo)
        try:
            with self._in(OTHER):
                yield self
        finally:
            for owner, attribute, value in reversed(undo):
                setattr(owner, attribute, value)

    def _wrapped(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*arguments: object, **named: object) -> object:
            with self._in(stage):
                return function(*arguments, **named)

        return timed

    @contextmanager
    def _in(self, stage: str) -> Iterator[None]:
        inside: list[float] = vars(self._of_thread).setdefault("inside", [])  # of each open stage: seconds within it
        is_this = threading.get_ident() == self._thread
        inside.append(0.0)
        self.calls[stage] += 1
        begun = time.perf_counter()
        try:
            with torch.profiler.record_function(f"{PREFIX}{stage}") if is_this else nullcontext():
                yield
        finally:
            seconds = time.perf_counter() - begun
            (self.seconds if is_this else self.beside)[stage] += seconds - inside.pop()
            if inside:
                inside[-1] += seconds


def missing() -> list[str]:
    """Return the functions of `STAGES` that the package does not have."""
    return [name for names in STAGES.values() for name in names if _found(name) is None]


def _found(name: str) -> tuple[Any, str] | None:
    """Return who has a function, and under which name."""
    module, _, path = name.partition(":")
    owner: Any = importlib.import_module(module)
    *classes, attribute = path.split(".")
    for part in classes:
        owner = getattr(owner, part, None)
    return (owner, attribute) if owner is not None and attribute in vars(owner) else None


def _replace(name: str, wrapped: Callable[[Any], Any], undo: list[tuple[Any, str, Any]]) -> None:
    """Put a wrapped function in the place of a function, wherever modules of the package have imported it."""
    found = _found(name)
    if found is None:
        raise LookupError(f"scripts/gpu_stages.py names {name}, which is not there")
    owner, attribute = found
    value = vars(owner)[attribute]
    if isinstance(value, classmethod | staticmethod):
        _set(owner, attribute, type(value)(wrapped(value.__func__)), undo)
        return
    replacement = wrapped(value)
    _set(owner, attribute, replacement, undo)
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith("pbgeval.") and module is not owner:
            for other, theirs in list(vars(module).items()):
                if theirs is value:
                    _set(module, other, replacement, undo)


def _set(owner: object, attribute: str, value: object, undo: list[tuple[Any, str, Any]]) -> None:
    undo.append((owner, attribute, vars(owner)[attribute]))
    setattr(owner, attribute, value)


def _compiler() -> type | None:
    try:
        module = importlib.import_module(COMPILER[0])
    except ImportError:
        return None
    owner: type | None = getattr(module, COMPILER[1], None)
    return owner if owner is not None and COMPILER[2] in vars(owner) else None


def trace(work: Callable[[], object]) -> dict[str, Any]:
    """Run some work under torch's profiler, its stages timed.

    Returns:
        Launches (kernels, copies and fills), seconds of the GPU by the stage that launched them, and the share of the
        time in which the GPU was busy.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        with torch.profiler.profile() as profiler, Stages().timed():
            begun = time.perf_counter()
            work()
            torch.cuda.synchronize()
            seconds = time.perf_counter() - begun
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return {**_by_stage(events), "seconds": seconds, "busy": _busy_seconds(events) / seconds}


def _by_stage(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Say of each thing that the GPU did which stage had launched it: the innermost that was open then."""
    stages = sorted(
        (event["ts"], event["ts"] + event["dur"], event["name"].removeprefix(PREFIX))
        for event in events
        if event.get("cat") == "user_annotation" and event["name"].startswith(PREFIX)
    )
    launched = {
        event["args"]["correlation"]: event["ts"]
        for event in events
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in event.get("args", {})
    }
    ordered = sorted(
        (launched.get(event["args"].get("correlation"), event["ts"]), event["dur"], event["cat"])
        for event in events
        if event.get("cat") in ON_DEVICE
    )
    launches: Counter[str] = Counter()
    seconds: defaultdict[str, float] = defaultdict(float)
    is_open: list[tuple[float, str]] = []  # end and name; the innermost last
    position = 0
    for at, duration, _ in ordered:
        while position < len(stages) and stages[position][0] <= at:
            is_open.append((stages[position][1], stages[position][2]))
            position += 1
        is_open = [stage for stage in is_open if stage[0] >= at]
        stage = is_open[-1][1] if is_open else OTHER
        launches[stage] += 1
        seconds[stage] += duration / 1e6
    kinds = Counter(category for _, _, category in ordered)
    return {
        "launches": sum(launches.values()),
        "launches_by_kind": dict(kinds),
        "launches_by_stage": dict(launches),
        "device_seconds_by_stage": {stage: round(found, 6) for stage, found in seconds.items()},
    }


def _busy_seconds(events: list[dict[str, Any]]) -> float:
    """Return for how long at least one thing was running on the GPU."""
    busy, until = 0.0, 0.0
    spans = sorted((event["ts"], event["ts"] + event["dur"]) for event in events if event.get("cat") in ON_DEVICE)
    for start, stop in spans:
        busy += max(0.0, stop - max(start, until))
        until = max(until, stop)
    return busy / 1e6


def synchronisations(work: Callable[[], object]) -> dict[str, int]:
    """Return how often each line waits for the GPU, as torch tells it: by "file:line", the most frequent first."""
    lines: Counter[str] = Counter()

    def count(message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: object) -> None:
        if "synchroniz" in str(message):
            lines[f"{Path(filename).parent.name}/{Path(filename).name}:{lineno}"] += 1

    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = count  # type: ignore[assignment] # it takes whatever else is handed over
        torch.cuda.set_sync_debug_mode("warn")
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode(before)
    return dict(lines.most_common())

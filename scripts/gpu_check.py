"""Checks and benchmarks on a GPU: `scripts/gpu_check` says how to call it.

Imports nothing that a bare checkout with torch, triton, numpy, h5py and attrs does not have.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gpu_stages

if TYPE_CHECKING:
    import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

Check = Callable[[], dict[str, Any]]


def main() -> int:
    """Run everything; return the exit status."""
    arguments = _arguments()
    if arguments.device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported
    import gpu_paths
    import gpu_speed
    import torch

    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("gpu_check: no GPU that torch can use; --device cpu interprets the kernel", file=sys.stderr)
        return 1
    device = torch.device(arguments.device)
    results = Results(arguments.output, arguments.seconds, {"smoke": arguments.smoke})
    results.found["machine"] = gpu_speed.machine(device)
    # Equality comes last: what users run says most, and time may run out.
    checks = gpu_paths.checks(device, arguments.smoke)
    start_up = [name for name in checks if name.startswith("self-check")]
    results.run_all("checks", {name: checks[name] for name in start_up}, may_skip=False)
    results.run_all("benchmarks", gpu_speed.benchmarks(device, arguments.smoke))
    _run_evaluations(results, device, smoke=arguments.smoke)
    results.run_all("checks", {name: check for name, check in checks.items() if name not in start_up})
    results.found["complete"] = not results.skipped()
    results.write(to_stdout=True)
    print(_table(results.found["benchmarks"]), _table_of_runs(results.found["runs"]), sep="\n\n", file=sys.stderr)
    return 0 if results.found["passed"] else 1


def _run_evaluations(results: Results, device: torch.device, *, smoke: bool) -> None:
    """Evaluate each job on the device, beside the CPU and a plain torch loop, and trace a smaller one."""
    import gpu_runs

    for name, job in gpu_runs.jobs(smoke).items():
        if results.is_over():  # before files are written
            results.run("runs", name, dict)
            continue
        with gpu_runs.files(job) as config:
            found = results.run("runs", name, partial(gpu_runs.run_on_device, config, device))
            if "mrr" in found and job.has_cpu_run:
                results.run("runs", f"{name}, CPU", partial(gpu_runs.run_on_cpu, config, found["mrr"]))
            if device.type == "cuda" and not results.is_over():
                gpu_runs.write_edges(config.parent, job.smaller())
                label = f"{name}, a {gpu_runs.SMALLER}th of the edges, traced"
                results.run("runs", label, partial(gpu_runs.trace_on_device, config))
        if job.settings["candidates"] == "all":
            results.run("runs", f"{name}, plain torch loop", partial(gpu_runs.plain_torch_loop, job, device))


class Results:
    """What has been found so far; a file has it after every step, so a run that is cut off still tells."""

    def __init__(self, output: Path | None, seconds: float, found: dict[str, Any]) -> None:
        self.found = {"complete": False, **found}
        self._paths = [output] if output is not None else []
        if os.environ.get("OUT"):
            self._paths.append(Path(os.environ["OUT"]) / "gpu_check.json")
        self._begun, self._limit = time.monotonic(), seconds

    def run_all(self, part: str, steps: dict[str, Check], *, may_skip: bool = True) -> None:
        """Run steps one after the other."""
        for name, step in steps.items():
            self.run(part, name, step, may_skip=may_skip)

    def run(self, part: str, name: str, step: Check, *, may_skip: bool = True) -> dict[str, Any]:
        """Run one step, unless the time is over; what it raises is its result."""
        begun = time.monotonic()
        if may_skip and self.is_over():
            found: dict[str, Any] = {"passed": True, "skipped": "no time was left"}
            print(f"skip {name}: no time was left", file=sys.stderr, flush=True)
        else:
            try:
                found = {"passed": True, **step()}
            except Exception as error:
                found = {"passed": False, "error": f"{type(error).__name__}: {error}"}
                found["traceback"] = traceback.format_exc()
            print(f"{'ok  ' if found['passed'] else 'FAIL'} {name}", file=sys.stderr, flush=True)
        found = {"name": name, "seconds_of_step": round(time.monotonic() - begun, 3), **found}
        self.found.setdefault(part, []).append(found)
        self.write()
        return found

    def is_over(self) -> bool:
        """Tell whether the time is over, so that no step may begin."""
        return time.monotonic() - self._begun > self._limit

    def skipped(self) -> list[str]:
        """Return the steps for which no time was left."""
        return [step["name"] for step in self._steps() if "skipped" in step]

    def write(self, *, to_stdout: bool = False) -> None:
        """Write all that has been found."""
        self.found["passed"] = all(step["passed"] for step in self._steps())
        self.found["seconds"] = round(time.monotonic() - self._begun, 1)
        text = json.dumps(self.found, indent=1)
        for path in self._paths:
            path.write_text(text, encoding="utf-8")
        if to_stdout:
            print(text)

    def _steps(self) -> list[dict[str, Any]]:
        return [step for part in ("checks", "benchmarks", "runs") for step in self.found.get(part, [])]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/gpu_check", description=__doc__)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes: figures of speed mean nothing")
    parser.add_argument("--output", type=Path, help="also write the JSON here")
    parser.add_argument("--seconds", type=float, default=240, help="no step begins after this long")
    return parser.parse_args()


def _table(benchmarks: list[dict[str, Any]]) -> str:
    """Return a line per benchmark: what it reached, and what share of the float32 limit, which comes first."""
    lines = ["| benchmark | TFLOP/s | of the limit | two passes over tiles |", "|---|---|---|---|"]
    speeds = [found.get("teraflops", found.get("tiles_teraflops")) for found in benchmarks]
    for found, speed in zip(benchmarks, speeds, strict=True):
        figures = ["not measured"] * 2 if speed is None else [f"{speed:.4g}", f"{speed / (speeds[0] or speed):.0%}"]
        ratio = found.get("two_pass_over_tiles")
        lines.append(f"| {' | '.join([found['name'], *figures, '' if ratio is None else f'{ratio:.2f}'])} |")
    return "\n".join(lines)


def _table_of_runs(runs: list[dict[str, Any]]) -> str:
    """Return a line per evaluation: seconds in all and by stage, the second time; and of those traced, launches."""
    stages = [*gpu_stages.STAGES, gpu_stages.COMPILE, gpu_stages.OTHER]
    lines = [f"| run | seconds | first | {' | '.join(stages)} | beside |", "|---|---|---|---|" + "---|" * len(stages)]
    traces = ["| traced | launches | synchronisations | GPU busy |", "|---|---|---|---|"]
    for run in runs:
        if "launches" in run:
            waits = sum(run["synchronisations"].values())
            traces.append(f"| {run['name']} | {run['launches']:,} | {waits:,} | {run['busy']:.0%} |")
            continue
        second = run.get("second", run)
        by_stage = second.get("seconds_by_stage", {})
        figures = [second.get("seconds", "not measured"), run.get("first", {}).get("seconds", "")]
        figures += [by_stage.get(stage, "") for stage in stages]
        figures.append(", ".join(f"{stage} {value}" for stage, value in second.get("seconds_beside", {}).items()))
        lines.append(f"| {run['name']} | {' | '.join(map(str, figures))} |")
    return "\n".join([*lines, "", *traces])


if __name__ == "__main__":
    sys.exit(main())

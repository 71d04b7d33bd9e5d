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
from pathlib import Path
from typing import Any

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

    from pbgeval.ranking import counting

    counting.JIT_MIN_CELLS = 1 << 62  # the CPU counts on the general path: what numba is here, who knows

    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("gpu_check: no GPU that torch can use; --device cpu interprets the kernel", file=sys.stderr)
        return 1
    device = torch.device(arguments.device)
    begun = time.monotonic()
    results: dict[str, Any] = {"complete": False, "smoke": arguments.smoke, "machine": gpu_speed.machine(device)}
    try:
        checks = gpu_paths.checks(device, arguments.smoke)
        results["checks"] = [_run(name, check) for name, check in checks.items()]
        results["benchmarks"] = []
        for name, benchmark in gpu_speed.benchmarks(device, arguments.smoke).items():
            if time.monotonic() - begun > arguments.seconds:
                results["benchmarks"].append({"name": name, "passed": True, "skipped": "no time was left"})
                continue
            results["benchmarks"].append(_run(name, benchmark))
        results["complete"] = True
    finally:  # what an unforeseen error leaves is better than nothing
        results["passed"] = all(part["passed"] for part in results.get("checks", []) + results.get("benchmarks", []))
        results["seconds"] = round(time.monotonic() - begun, 1)
        _write(json.dumps(results, indent=1), arguments.output)
        print(_table(results.get("benchmarks", [])), file=sys.stderr)
    return 0 if results["passed"] else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/gpu_check", description=__doc__)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes: figures of speed mean nothing")
    parser.add_argument("--output", type=Path, help="also write the JSON here")
    parser.add_argument("--seconds", type=float, default=480, help="no benchmark begins after this long")
    return parser.parse_args()


def _run(name: str, check: Check) -> dict[str, Any]:
    """Run one check; what it raises is its result."""
    begun = time.monotonic()
    try:
        found = {"passed": True, **check()}
    except Exception as error:
        found = {"passed": False, "error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
    print(f"{'ok  ' if found['passed'] else 'FAIL'} {name}", file=sys.stderr)
    return {"name": name, "seconds": round(time.monotonic() - begun, 3), **found}


def _table(benchmarks: list[dict[str, Any]]) -> str:
    """Return a line per benchmark: what it reached, and what share of the float32 limit, which comes first."""
    lines = ["| benchmark | TFLOP/s | of the limit | two passes over tiles |", "|---|---|---|---|"]
    speeds = [found.get("teraflops", found.get("tiles_teraflops")) for found in benchmarks]
    for found, speed in zip(benchmarks, speeds, strict=True):
        figures = ["not measured"] * 2 if speed is None else [f"{speed:.4g}", f"{speed / (speeds[0] or speed):.0%}"]
        ratio = found.get("two_pass_over_tiles")
        lines.append(f"| {' | '.join([found['name'], *figures, '' if ratio is None else f'{ratio:.2f}'])} |")
    return "\n".join(lines)


def _write(text: str, output: Path | None) -> None:
    print(text)
    if output is not None:
        output.write_text(text, encoding="utf-8")
    if os.environ.get("OUT"):
        (Path(os.environ["OUT"]) / "gpu_check.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())

"""Times exact ranks against float32 ones, and products of lower precision against float32, and prints tables.

    python benchmarks/exact/main.py              # the sizes of the README: some minutes
    python benchmarks/exact/main.py --smoke      # a tiny model: does it run?

Run it with the Python that pbgeval is installed in. What each figure includes stands in the README beside this file.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from attrs import frozen
from blocks import block_seconds

import pbgeval.worker.sweep as sweep
from pbgeval import evaluate, load_config
from pbgeval.ranking import cpu_counting
from pbgeval.ranking.backend import load_compiled
from pbgeval.scoring.exact import EXACT_COMPARATORS

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks import machine
from benchmarks.exact.job import JobSize, write_job

FLOAT32, BY_FLOAT32, EXACT = "float32", "exact, products in float32", "exact"  # what is run, in turn
BLOCK = (1024, 2048)  # queries and candidates that one thread multiplies at a time


@frozen
class Run:
    """One evaluation."""

    seconds: float
    sweep_seconds: float  # the step that reads all candidates, multiplies, decides and counts
    sweep_cpu_seconds: float  # of all threads: says more where other programs run
    mean_reciprocal_rank: float
    decided: dict[str, int]  # of candidates that the product left open


def main() -> None:
    """Make the model, measure the two precisions in turn, print."""
    options = _options()
    load = os.getloadavg()[0]
    size = JobSize(num_entities=options.entities, num_edges=options.edges, dimension=options.dimension)
    if options.smoke:
        size = JobSize(num_entities=500, num_edges=20, dimension=16)
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    load_compiled(torch.device("cpu"), torch.float32, with_products=True)
    runs: dict[str, list[Run]] = {way: [] for way in (FLOAT32, BY_FLOAT32, EXACT)}
    speeds: list[float] = []
    with tempfile.TemporaryDirectory(prefix="pbgeval-benchmark-") as folder:
        config = write_job(Path(folder), size)
        for repeat in range(options.repeats):
            speeds.append(machine.matmul_flops(options.threads))
            for number, (way, of_way) in enumerate(runs.items()):
                of_way.append(_run(config, way, options.metrics, Path(folder) / f"output-{repeat}-{number}"))
                print(f"{way}: {of_way[-1]}", file=sys.stderr, flush=True)
    limit = 2 * 2 * size.num_edges * size.num_entities * size.dimension / statistics.median(speeds)
    _print_head(options, size, load, limit)
    _print_runs(runs, limit)
    torch.set_num_threads(1)
    _print_blocks(size, 2 if options.smoke else 25)
    _print_products(size.dimension, 2 if options.smoke else 15)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entities", type=int, default=JobSize().num_entities, help="[%(default)s]")
    parser.add_argument("--edges", type=int, default=JobSize().num_edges, help="two queries each [%(default)s]")
    parser.add_argument("--dimension", type=int, default=JobSize().dimension, help="[%(default)s]")
    parser.add_argument("--threads", type=int, default=2, help="[%(default)s]")
    parser.add_argument("--metrics", default="rank,auc", help="rank: without the AUC's sample [%(default)s]")
    parser.add_argument("--repeats", type=int, default=3, help="of each precision, in turn [%(default)s]")
    parser.add_argument("--smoke", action="store_true", help="a tiny model, one repeat")
    options = parser.parse_args()
    if options.smoke:
        options.repeats, options.threads = 1, 1
    return options


def _run(config: Path, way: str, metrics: str, output: Path) -> Run:
    seconds_of_sweep: list[tuple[float, float]] = []
    rank = sweep._rank

    def timed(*arguments: Any) -> Any:  # noqa: ANN401 - whatever it takes and returns
        begun, cpu_begun = time.perf_counter(), time.process_time()
        result = rank(*arguments)
        seconds_of_sweep.append((time.perf_counter() - begun, time.process_time() - cpu_begun))
        return result

    sweep._rank = timed
    multiplies_bfloat16 = cpu_counting.multiplies_bfloat16
    try:
        if way == BY_FLOAT32:
            cpu_counting.multiplies_bfloat16 = lambda: False  # type: ignore[assignment]
        loaded = load_config(config, [f"precision={'float32' if way == FLOAT32 else 'exact'}", f"metrics={metrics}"])
        begun = time.perf_counter()
        report = evaluate(loaded, output=output, workers=1, device="cpu")
        seconds = time.perf_counter() - begun
    finally:
        sweep._rank, cpu_counting.multiplies_bfloat16 = rank, multiplies_bfloat16
    ((of_sweep, cpu_of_sweep),) = seconds_of_sweep
    return Run(seconds, of_sweep, cpu_of_sweep, report["mrr"], report.run.get("open_candidates", {}))


def _print_head(options: argparse.Namespace, size: JobSize, load: float, limit: float) -> None:
    print(machine.describe("benchmarks/exact/main.py", load))
    print(
        f"Job: {2 * size.num_edges:,} queries against {size.num_entities:,} entities, dot, D={size.dimension}; "
        f"{options.threads} threads; medians of {options.repeats} runs of each, in turn; "
        f"float32 matmul limit {limit:.2f} s;"
        f"products in bfloat16: {'yes' if cpu_counting.multiplies_bfloat16() else 'no'}\n"
    )


def _print_runs(runs: dict[str, list[Run]], limit: float) -> None:
    print("| | " + " | ".join(runs) + " | ratios to float32, medians of turns |")
    print("|---|" + "---|" * (len(runs) + 1))
    figures = {
        "evaluation, s": "seconds",
        "of that the ranking sweep, s": "sweep_seconds",
        "the same, CPU time of all threads, s": "sweep_cpu_seconds",
    }
    for title, figure in figures.items():
        values = [[getattr(run, figure) for run in of_way] for of_way in runs.values()]
        ratios = [statistics.median(x / y for x, y in zip(of_way, values[0], strict=True)) for of_way in values[1:]]
        cells = [f"{statistics.median(of_way):.2f}" for of_way in values]
        print(f"| {title} | " + " | ".join(cells) + " | " + ", ".join(f"{ratio:.2f}" for ratio in ratios) + " |")
    sweeps = [statistics.median(run.sweep_seconds for run in of_way) / limit for of_way in runs.values()]
    print("| ranking sweep over the matmul limit | " + " | ".join(f"{of_way:.2f}" for of_way in sweeps) + " | |")
    print(
        "| MRR (realistic) | "
        + " | ".join(f"{of_way[0].mean_reciprocal_rank:.10f}" for of_way in runs.values())
        + " | |"
    )
    for title, key in (("candidates decided in float64", "in_float64"), ("candidates decided exactly", "exactly")):
        cells = [f"{of_way[0].decided[key]:,}" if of_way[0].decided else "" for of_way in runs.values()]
        print(f"| {title} | " + " | ".join(cells) + " | |")
    print()


def _print_blocks(size: JobSize, repeats: int) -> None:
    shape = f"{BLOCK[0]} x {BLOCK[1]}, D={size.dimension}"
    print(f"| block of {shape}, multiplied and counted by one thread | float32, CPU ms | exact | ratio |")
    print("|---|---|---|---|")
    for name in EXACT_COMPARATORS:
        before, after, ratio = block_seconds(name, (*BLOCK, size.dimension), size.agreement, repeats)
        print(f"| {name} | {1e3 * before:.2f} | {1e3 * after:.2f} | {ratio:.2f} |")
    print()


def _print_products(dimension: int, repeats: int) -> None:
    """Time one thread's block, kinds of products in turn."""
    kinds = _products(dimension)
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(repeats):
        for name, multiply in kinds.items():
            begun = time.thread_time()
            multiply()
            seconds[name].append(time.thread_time() - begun)
    print(
        f"| product of {BLOCK[0]} x {BLOCK[1]}, D={dimension}, one thread | CPU ms | float32 over it, median of turns |"
    )
    print("|---|---|---|")
    for name, of_kind in seconds.items():
        ratio = statistics.median(base / one for base, one in zip(seconds["float32"], of_kind, strict=True))
        print(f"| {name} | {1e3 * statistics.median(of_kind):.2f} | {ratio:.2f} |")


def _products(dimension: int) -> dict[str, Callable[[], torch.Tensor]]:
    num_queries, num_candidates = BLOCK
    whole_Q, whole_C = (torch.randint(-60, 61, (size, dimension)) for size in (num_queries, num_candidates))
    kinds: dict[str, Callable[[], torch.Tensor]] = {}
    types = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}
    for name, dtype in types.items():
        kinds[name] = _matmul(whole_Q.to(dtype), whole_C.to(dtype))
    int8_Q, int8_C = whole_Q.to(torch.int8), whole_C.to(torch.int8)
    kinds["int8 to int32 (torch._int_mm)"] = lambda: torch._int_mm(int8_Q, int8_C.t())
    if "fbgemm" in torch.backends.quantized.supported_engines:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.backends.quantized.engine = "fbgemm"
            packed = torch.ops.quantized.linear_prepack(
                torch.quantize_per_tensor(whole_C.float(), 1.0, 0, torch.qint8), None
            )
        float_Q = whole_Q.float()
        kinds["int8 to float32 (FBGEMM)"] = lambda: torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
            float_Q, 1.0, 64, packed
        )
    return kinds


def _matmul(query_QD: torch.Tensor, candidate_CD: torch.Tensor) -> Callable[[], torch.Tensor]:
    return lambda: torch.mm(query_QD, candidate_CD.t())


if __name__ == "__main__":
    main()

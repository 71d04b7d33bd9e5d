"""Times PyKEEN's RankBasedEvaluator and ours on the same models, in one process, and prints a table.

    python benchmarks/exact_vs_pykeen/interface.py             # a made graph of WN18RR's size
    python benchmarks/exact_vs_pykeen/interface.py --sizes 14541,237,272115 --triples 5000  # of FB15k-237's
    python benchmarks/exact_vs_pykeen/interface.py --dataset Nations --dimension 50 --models DistMult,TransE,TuckER
    python benchmarks/exact_vs_pykeen/interface.py --smoke     # a tiny graph: does it run?

Run it with the Python that pbgeval is installed in; `scripts/peers pykeen` installs the other program. This file then
runs itself with PyKEEN's Python. What each column means stands in the README beside it.
"""

import argparse
import gc
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
PEER = REPOSITORY / ".venv-peers" / "pykeen" / "bin" / "python"
PACKAGES = "PBGEVAL_BENCHMARK_PACKAGES"  # set for the second process, which measures
# By PyKEEN's names: the first four have a formula of ours, the last two have none.
MODELS = ("DistMult", "ComplEx", "TransE", "RotatE", "TuckER", "ConvE")


def main() -> None:
    """Run this file again with PyKEEN's Python, which needs our packages behind its own."""
    options = _options()
    if PACKAGES in os.environ:
        sys.path += [str(REPOSITORY), *os.environ[PACKAGES].split(os.pathsep)]
        (measure_small if options.dataset else measure)(options)
        return
    if not PEER.exists():
        sys.exit(f"no PyKEEN in {PEER}: run scripts/peers pykeen first")
    packages = os.pathsep.join(path for path in sys.path if path.endswith("site-packages"))
    threads = {"OMP_NUM_THREADS": str(options.threads), "OMP_WAIT_POLICY": "passive"}
    command = [str(PEER), str(Path(__file__).resolve()), *sys.argv[1:]]
    done = subprocess.run(command, env={**os.environ, **threads, PACKAGES: packages}, check=False)
    sys.exit(done.returncode)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--triples", type=int, default=600, help="evaluated, on both sides [%(default)s]")
    parser.add_argument("--dimension", type=int, default=100, help="[%(default)s]")
    parser.add_argument("--threads", type=int, default=2, help="[%(default)s]")
    parser.add_argument("--repeats", type=int, default=3, help="of each evaluator, in turns [%(default)s]")
    parser.add_argument("--models", default=",".join(MODELS), help="[%(default)s]")
    parser.add_argument(
        "--sizes",
        default="40943,11,86835",
        help="entities, relations and training triples of the made graph [%(default)s, as WN18RR]",
    )
    parser.add_argument("--dataset", help="CPU time on a small graph of PyKEEN's: Nations or Kinships")
    parser.add_argument("--smoke", action="store_true", help="a tiny graph, one repeat")
    options = parser.parse_args()
    options.sizes = (200, 3, 900) if options.smoke else tuple(map(int, options.sizes.split(",")))
    if options.smoke:
        options.triples, options.dimension, options.repeats = 40, 16, 1
    return options


def measure(options: argparse.Namespace) -> None:
    """Evaluate each model by both evaluators in turns."""
    import pykeen.models
    import torch
    from pykeen.evaluation import RankBasedEvaluator
    from pykeen.triples import CoreTriplesFactory

    from benchmarks import machine
    from pbgeval.integrations.pykeen import RankBasedEvaluator as Ours
    from pbgeval.models import pykeen as adapter

    load = os.getloadavg()[0]
    torch.manual_seed(0)
    test, train = _triples(options)
    num_entities, num_relations, _ = options.sizes
    factory = CoreTriplesFactory(train, num_entities=num_entities, num_relations=num_relations)
    rows: list[int] = []
    ask = adapter.PyKEENScores.__call__

    def counting(self: Any, hidden: Any, batch_b3: Any) -> Any:  # noqa: ANN401 - as it is
        rows.append(len(batch_b3))
        return ask(self, hidden, batch_b3)

    adapter.PyKEENScores.__call__ = counting  # type: ignore[method-assign]
    lines = []
    for name in options.models.split(","):
        model = getattr(pykeen.models, name)(triples_factory=factory, embedding_dim=options.dimension, random_seed=0)
        model.eval()
        theirs = partial(RankBasedEvaluator().evaluate, model, test, additional_filter_triples=[train], use_tqdm=False)
        ours = partial(Ours().evaluate, model, test, additional_filter_triples=[train])
        ours()  # loads compiled loops
        rows.clear()
        lines.append(_line(name, options, theirs, ours, rows))
        print(lines[-1], file=sys.stderr, flush=True)
    print(machine.describe("benchmarks/exact_vs_pykeen/interface.py", load, f"PyKEEN {pykeen.version.get_version()}"))
    print(
        f"Job: a made graph, {num_entities:,} entities, {num_relations} relations, {len(train):,} training triples, "
        f"{len(test)} evaluated on both sides, D={options.dimension}; {options.threads} threads; medians of "
        f"{options.repeats} runs each, in turns (lowest to highest); load at the end {os.getloadavg()[0]:.1f}\n"
    )
    print("| model | PyKEEN, s | pbgeval, s | pbgeval / PyKEEN, median of pairs | rows asked per query | MRR, both |")
    print("|---|---|---|---|---|---|")
    print("\n".join(lines))


def measure_small(options: argparse.Namespace) -> None:
    """Take the CPU time of both evaluators on a small graph: of our first call, then of both in turns."""
    import pykeen.datasets
    import pykeen.models
    from pykeen.evaluation import RankBasedEvaluator

    from benchmarks import machine

    begun, load = time.process_time(), os.getloadavg()[0]
    from pbgeval.integrations.pykeen import RankBasedEvaluator as Ours

    imports = time.process_time() - begun
    data = getattr(pykeen.datasets, options.dataset)()
    known = [data.training.mapped_triples, data.validation.mapped_triples]
    lines = []
    for name in options.models.split(","):
        model = getattr(pykeen.models, name)(
            triples_factory=data.training, embedding_dim=options.dimension, random_seed=0
        ).eval()
        triples: dict[str, Any] = {"mapped_triples": data.testing.mapped_triples, "additional_filter_triples": known}
        first = _cpu_seconds(partial(Ours().evaluate, model, **triples))
        theirs = partial(RankBasedEvaluator().evaluate, model, use_tqdm=False, **triples)
        _cpu_seconds(theirs)
        ours = partial(Ours().evaluate, model, **triples)
        turns = [tuple(map(_cpu_seconds, (theirs, ours, partial(_read_all, ours)))) for _ in range(options.repeats)]
        shown = [f"{statistics.median(of):.3f} ({min(of):.3f} to {max(of):.3f})" for of in zip(*turns, strict=True)]
        ratio = statistics.median(mine / its for its, mine, _ in turns)
        lines.append(f"| {options.dataset} | {name} | {first:.2f} | {' | '.join(shown)} | {ratio:.2f} |")
    print(machine.describe("benchmarks/exact_vs_pykeen/interface.py", load, f"PyKEEN {pykeen.version.get_version()}"))
    print(
        f"D={options.dimension}; medians of {options.repeats} (lowest to highest); imports of pbgeval {imports:.2f} s\n"
    )
    print(
        "| graph | model | our first call, CPU s | PyKEEN, CPU s | pbgeval, CPU s | all sections read, CPU s "
        "| pbgeval / PyKEEN |"
    )
    print("|---|---|---|---|---|---|---|")
    print("\n".join(lines))


def _read_all(evaluate: Callable[[], Any]) -> None:
    """Evaluate, and read every section and table of the report."""
    report = evaluate().report
    report.to_json()
    for name in report.tables:
        list(report.table(name))


def _cpu_seconds(evaluate: Callable[[], Any]) -> float:
    gc.collect()
    begun = time.process_time()
    evaluate()
    return time.process_time() - begun


def _triples(options: argparse.Namespace) -> Any:  # noqa: ANN401 - tensors
    """Return evaluated and training triples: distinct, of entities that are as uneven as in real graphs."""
    import torch

    num_entities, num_relations, num_train = options.sizes
    source = torch.Generator().manual_seed(1)
    wanted = num_train + options.triples
    uneven = torch.rand((2, 2 * wanted), generator=source) ** 2 * num_entities
    relation = (torch.rand(2 * wanted, generator=source) ** 2 * num_relations).long()
    triples = torch.unique(torch.stack([uneven[0].long(), relation, uneven[1].long()], dim=1), dim=0)
    triples = triples[torch.randperm(len(triples), generator=source)[:wanted]]
    return triples[: options.triples], triples[options.triples :]


def _line(
    name: str, options: argparse.Namespace, theirs: Callable[[], Any], ours: Callable[[], Any], rows: list[int]
) -> str:
    seconds: tuple[list[float], list[float]] = ([], [])
    mrr: list[float] = []
    for _ in range(options.repeats):
        for of, evaluate in zip(seconds, (theirs, ours), strict=True):
            gc.collect()
            begun = time.perf_counter()
            results = evaluate()
            of.append(time.perf_counter() - begun)
            mrr.append(results.get_metric("both.realistic.inverse_harmonic_mean_rank"))
    ratio = statistics.median(mine / its for its, mine in zip(*seconds, strict=True))
    shown = [f"{statistics.median(of):.2f} ({min(of):.2f} to {max(of):.2f})" for of in seconds]
    per_query = sum(rows) / options.repeats / (2 * options.triples)
    return f"| {name} | {shown[0]} | {shown[1]} | {ratio:.2f} | {per_query:.3f} | {mrr[0]:.7f}, {mrr[1]:.7f} |"


if __name__ == "__main__":
    main()

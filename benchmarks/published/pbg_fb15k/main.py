"""Checks PyTorch-BigGraph's FB15k example against the figures of its README; prints a table.

    python benchmarks/published/pbg_fb15k/main.py --config fb15k_config_cpu.py
    python benchmarks/published/pbg_fb15k/main.py --smoke    # a made graph and checkpoint: does it run?

What each figure means is explained in the README beside this file. Nobody has run it on the published graph.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from benchmarks.sampled_vs_torchbiggraph.graph import GraphSize, Protocol, make_graph, write_config
from pbgeval import evaluate, load_config

METRICS = ("mean_rank", "mrr", "hits@1", "hits@10", "hits@50")
# Of 59,071 test edges, both sides, by torchbiggraph_example_fb15k (filtered) and torchbiggraph_eval (raw).
PUBLISHED = {
    "filtered": (65.4821, 0.789921, 0.738501, 0.876894, 0.92647),
    "raw": (234.136, 0.239957, 0.131757, 0.485382, 0.712693),
}

MADE = GraphSize(num_partitions=1, num_entities=40, num_relations=2, num_edges=30, few_edges=9, dimension=8)


def main() -> None:
    """Evaluate the trained checkpoint, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--config", type=Path, help="the example's config: edge_paths are train, valid and test")
    source.add_argument("--smoke", action="store_true", help="a made graph and checkpoint")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.smoke:
            made = Path(folder) / "made"
            make_graph(made, MADE)
            config = write_config(
                made, MADE, Protocol(num_batch_negs=0, num_uniform_negs=10, batch_size=100, workers=1)
            )
            train, valid, test = (str(made / name) for name in ("edges", "few_edges", "edges"))
        else:
            config = options.config
            train, valid, test = load_config(config).edge_paths
        overrides = [f"edge_paths={test}", f"train_paths={train}", f"filter_paths={valid}"]
        report = evaluate(
            config, overrides=[*overrides, "candidates=all", "hits_at=1,10,50"], output=Path(folder) / "out"
        )
    print("| figure | published | ours | difference |\n|---|---|---|---|")
    for kind, figures in {"filtered": report, "raw": report.raw}.items():
        for metric, value in zip(METRICS, PUBLISHED[kind], strict=True):
            ours = figures[f"pessimistic.{metric}"]
            print(f"| {kind} {metric} | {value:.6g} | {ours:.6g} | {ours - value:+.6f} |")
    print(f"\n{report['count']:,} queries")


if __name__ == "__main__":
    main()

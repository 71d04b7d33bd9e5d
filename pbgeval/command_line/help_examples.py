"""The examples that end the help of each command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

EXAMPLES: Mapping[str, Sequence[str]] = {
    "": (
        "kgeval-dist demo                       # makes a graph, a model and a config",
        "kgeval-dist run eval.py                # evaluates, prints a table",
        "kgeval-dist report results/DIR         # writes a page",
    ),
    "run": (
        "kgeval-dist run eval.py",
        "kgeval-dist run mine.toml -p candidates=all -p filter_paths=valid.tsv",
        "kgeval-dist run eval.py -p sample_edges=100000 -o results/sample",
    ),
    "plan": (
        "kgeval-dist plan eval.py",
        "kgeval-dist plan eval.py -p candidates=all",
        "kgeval-dist plan eval.py --workers 4 --device cpu",
    ),
    "submit": (
        "kgeval-dist submit eval.py --nodes 2 --workers-per-node 4 --time 2:00:00",
        "kgeval-dist submit eval.py --gpus-per-node 1 --slurm account=physics",
        "kgeval-dist submit eval.py --scheduler local --wait",
    ),
    "import-model": (
        "kgeval-dist import-model ckpts/ComplEx_FB15k_0 -o converted",
        "kgeval-dist import-model best.pt -o converted --edges test=test.del",
        "kgeval-dist import-model arrays -o converted --edges test=t.tsv",
    ),
    "import-graph": (
        "kgeval-dist import-graph -o graph --edges train=train.tsv --edges test=t.tsv",
        "kgeval-dist import-graph -o graph --edges test=t.csv --edge-columns thr",
        "kgeval-dist import-graph -o graph --edges train=train.parquet --partitions 8",
    ),
    "demo": (
        "kgeval-dist demo",
        "kgeval-dist demo first_steps",
        "kgeval-dist demo --only-files",
    ),
    "template": (
        "kgeval-dist template",
        "kgeval-dist template slurm > job.sbatch",
        "kgeval-dist template kubernetes > job.yaml",
    ),
    "publish": (
        "kgeval-dist publish results/mine --dataset ORG/NAME -o model",
        "kgeval-dist publish results/mine --dataset ORG/NAME -o model --metric hits@10",
        "kgeval-dist publish results/mine --dataset ORG/NAME -o model --task test",
    ),
    "verify": (
        "kgeval-dist verify results/mine eval.py",
        "kgeval-dist verify results/mine eval.py -p checkpoint_path=downloaded",
        "kgeval-dist verify results/mine eval.py --share 0.01",
    ),
    "inspect": (
        "kgeval-dist inspect graph/test",
        "kgeval-dist inspect graph/entity",
        "kgeval-dist inspect checkpoint",
    ),
    "metrics": (
        "kgeval-dist metrics",
        "kgeval-dist metrics mrr",
        "kgeval-dist metrics hits@5",
    ),
    "topk": (
        "kgeval-dist topk --test test.tsv --ranking predictions.txt",
        "kgeval-dist topk --test test.tsv --ranking predictions.txt --known train.tsv",
        "kgeval-dist topk --test test.tsv --ranking predictions.txt --absent last",
    ),
    "types": (
        "kgeval-dist types --taxonomy types.tsv --truth true.tsv --ranking ranked.tsv",
        "kgeval-dist types --taxonomy types.tsv --truth t.tsv --ranking r.tsv -k 5",
        "kgeval-dist types --taxonomy t.tsv --truth true.tsv --ranking r.tsv -o o.json",
    ),
    "compare": (
        "kgeval-dist compare results/old results/new",
        "kgeval-dist compare results/old results/new --queries -o moved.html",
        "kgeval-dist compare one=results/seed1 one=results/seed2 two=results/other",
    ),
    "suite": (
        "kgeval-dist suite suite.yaml",
        "kgeval-dist suite suite.yaml -o results/suite",
        "kgeval-dist suite suite.yaml --overwrite",
    ),
    "monitor": (
        "kgeval-dist monitor run/monitor",
        "kgeval-dist monitor run/monitor --metric hits@10",
        "kgeval-dist monitor checkpoint",
    ),
    "report": (
        "kgeval-dist report results/mine",
        "kgeval-dist report results/mine --format latex -o table.tex",
        "kgeval-dist report results/mine --queries  # a page of single queries",
    ),
}

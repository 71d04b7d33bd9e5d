"""Output directories of runs that together write every file and every key."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import h5py

from pbgeval.storage.left_out import LeftOut
from tests.kit.case import TinyCase
from tests.kit.commands import flags, run_command
from tests.kit.held_up import entries_after_each_unit

EVERYTHING = (
    *("candidates=all", "filter_paths=known", "train_paths=known", "save_ranks=True", "save_topk=2"),
    "precision=exact",
    "breakdowns=relation,entity_types,cardinality,relation_frequency,entity_frequency,groups,time,popularity",
    *("relation_groups=groups.json", "time_bin=3", "time_window=1"),
    "topk_metrics=True",
)


def case_of_everything(root: Path) -> TinyCase:
    """Write a case that `EVERYTHING` fits."""
    case = TinyCase.write(root, partition_sizes=(9, 8), edges_per_bucket=11)
    for path in (case.root / "edges").iterdir():
        with h5py.File(path, "r+") as file:
            file["time"] = range(len(file["rel"]))
    shutil.copytree(case.root / "edges", case.root / "known")
    shutil.copytree(case.root / "known", case.root / "less")
    LeftOut(num_read=50, num_left_out=6, num_unknown_entities=1, num_unknown_relations=0).write(case.root / "less")
    (case.root / "checkpoint" / "config.json").write_text(json.dumps({"edge_paths": [str(case.root / "edges")]}))
    (case.root / "groups.json").write_text(json.dumps({"some": ["knows", "has"]}))
    return case


def every_output(root: Path) -> dict[str, Path]:
    """Run all of them, and return the directories by name."""
    case = case_of_everything(root)
    runs: dict[str, tuple[str, ...]] = {
        "plain": ("compute_loss=True",),
        "everything": EVERYTHING,
        "sample": ("candidates=partition", "sample_edges=20", "metrics=rank,auc,pooled_hits@10"),
        "sampled": ("candidates=sampled", "filter_paths=less", "restrict_relations=has", "comparator=l1"),
    }
    with entries_after_each_unit():
        for name, overrides in runs.items():
            assert run_command(case, "--workers", "1", "--quiet", "--output", name, *flags(overrides)).status == 0
    return {name: case.root / name for name in runs}

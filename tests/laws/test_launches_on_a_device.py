"""What a run asks of a GPU, counted without one: launches and synchronisations of each path, each with a limit.

A launch is an operation on tensors of the device that is no view, a copy from or to the host, or one of our kernels,
for which a reference stands.
A synchronisation is an answer that the host waits for, or a copy from or to its pageable memory. A view costs the host
some microseconds and the device nothing, so it has no limit. Speed is not measured.

    .venv/bin/python -m pytest -rP tests/laws/test_launches_on_a_device.py | grep "^| c"   # a table: path, all three
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import frozen

from pbgeval.ranking import auc_sampling
from pbgeval.scoring import device_exact, true_scores
from pbgeval.scoring.block_sizes import CPU
from pbgeval.scoring.self_check import check_kernels
from tests.kit.case import TinyCase
from tests.kit.commands import evaluated
from tests.laws.test_every_path_runs_on_a_device import on_the_device, pretend
from tests.pretend_device import DEVICE, Launches, PretendDevice

MATRIX_PRODUCTS = {"mm", "bmm", "addmm", "baddbmm", "mv", "dot", "_scaled_mm"}
NUM_EDGES = 1500  # 30 chunks of 50, both sides
GRAPH: dict[str, Any] = {
    "dynamic": True,
    "partition_sizes": (400,),
    "num_batch_negs": 50,
    "num_uniform_negs": 50,
    "batch_size": 1000,
}
# A fifth of the first of the 16 buckets of a graph of a million entities and 10 million edges.
LARGE_NUM_EDGES = 10_000_000 // 16 // 5
LARGE_GRAPH: dict[str, Any] = {
    "dynamic": True,
    "partition_sizes": (250_000,),
    "dimension": 100,
    "num_batch_negs": 100,
    "num_uniform_negs": 100,
    "batch_size": 10_000,
}
FILTER, EXACT_AUC, NO_AUC = "filter_paths=edges", "exact", "metrics=rank"
L1, COS = "l1", "cos"  # comparators
RELATIONS = "relation_prediction=True"
IN_TIME, LOSS = "time_window=1", "compute_loss=True"

pytestmark = pytest.mark.slow


@frozen
class Asked:
    """How often a run launches something, makes a view and waits, and which matrix products of torch it calls."""

    launches: int
    views: int
    synchronisations: int
    products: set[str]


def asked(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    num_edges: int,
    *overrides: str,
    exact_auc: bool,
    graph: dict[str, Any] = GRAPH,
) -> Asked:
    """Evaluate one bucket on the pretended device, in float32 if nothing else is asked."""
    case = TinyCase.write(folder / f"case-{num_edges}", edges_per_bucket=num_edges, **graph)
    if IN_TIME in overrides:
        case.give_times()
    monkeypatch.setattr(auc_sampling, "EXACT_CELLS", 1 << 40 if exact_auc else 0)
    monkeypatch.setattr(auc_sampling, "SAMPLED_CELLS", 5000)
    kernels = pretend(monkeypatch)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 36, 1 << 36))  # room for all queries
    with PretendDevice():
        check_kernels(DEVICE, exact=True)  # once in a process: it is no part of a path
        for number in range(1, 64):  # these too
            true_scores._multipliers(number, DEVICE)
    vars(kernels).update(dict.fromkeys(vars(kernels), 0))
    monkeypatch.setattr(device_exact, "MIN_SCREENED_CELLS", 0)
    with Launches() as counts:
        on_the_device(case, "precision=float32", *overrides)
    return Asked(
        sum(counts.operations.values()) + sum(vars(kernels).values()),
        counts.views,
        sum(counts.synchronisations.values()),
        MATRIX_PRODUCTS & {name for name, number in counts.operations.items() if number},
    )


# Of one bucket, both sides: at most so many launches and synchronisations, of a unit at most 100 and 3. Where relations
# have no product, a third side takes more; exact norms are added up in order, and tables are searched for zero vectors.
LIMITS: dict[tuple[str, ...], tuple[int, int]] = {
    ("candidates=all", NO_AUC): (64, 3),
    ("candidates=all", NO_AUC, "precision=exact"): (89, 3),
    ("candidates=sampled", NO_AUC): (50, 2),
    ("candidates=sampled",): (52, 2),
    ("candidates=sampled", FILTER): (54, 2),
    ("candidates=sampled", FILTER, EXACT_AUC): (48, 2),
    ("candidates=partition", NO_AUC): (64, 2),
    ("candidates=partition",): (68, 2),
    ("candidates=partition", FILTER): (70, 2),
    ("candidates=all",): (68, 3),
    ("candidates=all", FILTER): (70, 3),
    ("candidates=all", FILTER, "precision=exact"): (97, 3),
    ("candidates=partition", FILTER, "precision=exact"): (98, 2),
    ("candidates=sampled", FILTER, "precision=exact"): (88, 2),
    ("candidates=sampled", FILTER, COS, "precision=exact"): (123, 3),
    ("candidates=all", FILTER, COS, "precision=exact"): (153, 4),
    ("candidates=sampled", FILTER, L1): (54, 2),
    ("candidates=all", FILTER, L1): (69, 3),
    ("candidates=partition", FILTER, IN_TIME): (70, 2),
    ("candidates=all", FILTER, IN_TIME): (70, 3),
    ("candidates=all", FILTER, IN_TIME, "precision=exact"): (97, 3),
    ("candidates=all", FILTER, "save_topk=10"): (86, 3),
    ("candidates=partition", FILTER, RELATIONS): (100, 3),
    ("candidates=partition", FILTER, RELATIONS, COS): (137, 4),
    ("candidates=partition", FILTER, LOSS): (96, 2),
    ("candidates=sampled", FILTER, LOSS): (90, 2),
    ("candidates=partition", FILTER, EXACT_AUC): (68, 2),
}


@pytest.mark.parametrize("overrides", LIMITS, ids=" ".join)
def test_a_path_launches_and_waits_no_more_often_than_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: tuple[str, ...]
) -> None:
    """Nor does it call a matrix product of torch, whose bits depend on the shape."""
    given = [of for of in overrides if of not in (EXACT_AUC, L1, COS)]
    graph = GRAPH | {"comparator": next((of for of in (L1, COS) if of in overrides), "dot")}

    found = asked(tmp_path, monkeypatch, NUM_EDGES, *given, exact_auc=EXACT_AUC in overrides, graph=graph)

    print_row(" ".join(overrides), found)
    launches, synchronisations = LIMITS[overrides]
    assert not found.products
    assert found.launches <= launches
    assert found.synchronisations <= synchronisations


def print_row(path: str, found: Asked) -> None:
    counted = (found.launches, found.views, found.synchronisations)
    print("|", path, "|", *(f"{number:,} |" for number in counted))  # noqa: T201 - the table


def test_a_large_bucket_of_sampled_candidates_takes_few_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before there were passes for a GPU, 17,600 launches and 3,100 synchronisations or so."""
    found = asked(tmp_path, monkeypatch, LARGE_NUM_EDGES, "candidates=sampled", exact_auc=False, graph=LARGE_GRAPH)

    print_row(f"candidates=sampled, {LARGE_NUM_EDGES:,} edges", found)
    assert found.launches <= 86
    assert found.synchronisations <= 8


@pytest.mark.parametrize(
    "overrides", [("candidates=sampled",), ("candidates=partition", RELATIONS), ("candidates=all",)], ids=" ".join
)
def test_more_edges_of_a_bucket_are_launched_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: tuple[str, ...]
) -> None:
    few, many = (
        asked(tmp_path, monkeypatch, num_edges, *overrides, exact_auc=False) for num_edges in (NUM_EDGES, 2 * NUM_EDGES)
    )

    assert (many.launches, many.synchronisations) == (few.launches, few.synchronisations)


def test_a_device_counts_more_candidates_of_files_at_once_than_a_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = (CPU.swept_rows + 1000, CPU.swept_rows)
    case = TinyCase.write(tmp_path / "case", edges_per_bucket=8, **GRAPH | {"partition_sizes": sizes})
    expected = evaluated(case, "candidates=all", "precision=float32", NO_AUC, output="cpu")
    launches = pretend(monkeypatch)

    assert on_the_device(case, "candidates=all", "precision=float32", NO_AUC) == expected
    assert launches.count == len(sizes) * 2, "one of each partition and side"

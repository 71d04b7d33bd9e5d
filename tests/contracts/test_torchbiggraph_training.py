"""The monitor in PyTorch-BigGraph 1.0.0's own training, against the command on its checkpoint and its own evaluator."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from pbgeval import evaluate, load_config
from pbgeval.monitor.records import History, PassKey, VisitRecord, read_history
from pbgeval.monitor.schema import hash_edges, threshold_of
from tests.kit import pbg_files
from tests.kit.case import TinyCase
from tests.kit.commands import Done, run_program
from tests.kit.commands import start as start_program
from tests.kit.training import make_graph

pytestmark = pytest.mark.peers

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("torchbiggraph_monitored.py")
COMMAND = ["-m", "pbgeval.integrations.torchbiggraph"]
ITS_OWN_WARNING = "ignore:pkg_resources is deprecated as an API:UserWarning"  # setuptools below 81 warn its import
FRACTION = 0.3
MRR = "both.realistic.mean_reciprocal_rank"
KEYS: dict[str, Any] = {
    "eval_fraction": FRACTION,
    "eval_num_batch_negs": 5,
    "eval_num_uniform_negs": 4,
    "edges_per_bucket": 90,
    "num_epochs": 2,
    "num_edge_chunks": 1,
    "lr": 0.1,
    "workers": 1,
}


def start(python: Path, case: TinyCase, program: list[str], *arguments: str) -> Done:
    environment = {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": ITS_OWN_WARNING}
    return start_program([python, *program, case.config, *arguments], case.root, **environment)


def untrained(root: Path, **settings: Any) -> TinyCase:
    """A graph without a checkpoint."""
    case = TinyCase.write(root, **{**KEYS, **settings})
    for path in (root / "checkpoint").iterdir():
        path.unlink()
    return case


def buckets_of(folder: Path) -> dict[tuple[int, int], np.ndarray]:
    found = {}
    for path in sorted(folder.glob("edges_*.h5")):
        with h5py.File(path) as file:
            lhs, rhs = map(int, path.stem.split("_")[1:])
            found[lhs, rhs] = np.stack([file[name][:] for name in ("lhs", "rel", "rhs")], 1)
    return found


def is_held_out(case: TinyCase, bucket: tuple[int, int], edges: np.ndarray) -> np.ndarray:
    """Tell which edges of a bucket the hash holds out; bool."""
    sizes = {name: of["num_partitions"] for name, of in case.settings["entities"].items()}
    ends = [
        (
            of["lhs"],
            bucket[0] if sizes[of["lhs"]] > 1 else 0,
            of["rhs"],
            bucket[1] if sizes[of["rhs"]] > 1 else 0,
        )
        for of in case.settings["relations"]
    ]
    return hash_edges(0, ends, *edges.T.copy()) < np.uint64(threshold_of(FRACTION))


def untrained_random_graph(root: Path) -> TinyCase:
    case = untrained(
        root,
        partition_sizes=(240, 240),
        entities={"user": {"num_partitions": 2}},
        relations=[{"name": "links", "lhs": "user", "rhs": "user", "operator": "translation"}],
        num_epochs=2,
        eval_num_batch_negs=20,
        eval_num_uniform_negs=20,
        num_batch_negs=20,
        num_uniform_negs=20,
        batch_size=100,
        loss_fn="softmax",
        init_scale=0.3,
        lr=0.3,
    )
    for bucket, edges in make_graph(1, 2, 240, 6000).items():
        distinct = np.unique(edges.numpy(), axis=0)  # it would hold out one copy of an edge and train on another
        pbg_files.write_edges(case.root / "edges", bucket, *np.random.default_rng(2).permutation(distinct).T)
    return case


@pytest.fixture(scope="module")
def runs(peer: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[TinyCase, History]]:
    """Cases that one process has trained."""
    root = tmp_path_factory.mktemp("runs")
    cases = {name: untrained(root / name, dynamic=name == "dynamic") for name in ("relation_list", "dynamic")}
    cases["both evaluators"] = untrained_random_graph(root / "both")
    settings = dict.fromkeys(cases, "{}")
    settings["both evaluators"] = json.dumps({"keep_own_evaluation": True, "pbg_semantics": True})
    arguments = [argument for name, case in cases.items() for argument in (case.root, settings[name])]
    run_program(peer("torchbiggraph") / "python", PROGRAM, *arguments, PYTHONWARNINGS=ITS_OWN_WARNING)
    return {name: (case, read_history(case.root / "monitor", pytest.fail)) for name, case in cases.items()}


@pytest.fixture(params=["relation_list", "dynamic"])
def run(request: pytest.FixtureRequest, runs: dict[str, tuple[TinyCase, History]]) -> tuple[TinyCase, History]:
    return runs[request.param]


def test_the_last_figures_are_those_of_the_command_on_the_checkpoint(
    run: tuple[TinyCase, History], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the last bucket has been trained, the tensors in memory are those that the checkpoint gets."""
    case, history = run
    last = history.visits[-1]
    for bucket, edges in buckets_of(case.root / "edges").items():
        kept = edges[is_held_out(case, bucket, edges)] if bucket == tuple(last.bucket) else edges[:0]
        pbg_files.write_edges(tmp_path / "held_out", bucket, *kept.T)
    config = case.write_config(edge_paths=[str(tmp_path / "held_out")], num_batch_negs=5, num_uniform_negs=4)
    monkeypatch.chdir(case.root)

    metrics = evaluate(load_config(config), output=tmp_path / "output", workers=1).to_dict()["metrics"]
    assert last.details.after["both.realistic.count"] == metrics["both.realistic.count"] > 20
    assert last.details.after == {key: metrics[key] for key in last.details.after}


def test_every_edge_is_trained_on_in_each_epoch_or_never(run: tuple[TinyCase, History]) -> None:
    case, history = run
    expected: Counter[tuple[int, ...]] = Counter()
    counts = {}
    for bucket, edges in buckets_of(case.root / "edges").items():
        mask = is_held_out(case, bucket, edges)
        expected.update(map(tuple, edges[~mask].tolist()))
        counts[bucket] = (int(mask.sum()), int((~mask).sum()))
    trained = Counter(
        tuple(map(int, line.split(",")))
        for path in (case.root / "trained").iterdir()
        for line in path.read_text().splitlines()
    )

    assert {edge: 2 * count for edge, count in expected.items()} == dict(trained)
    for visit in history.visits:
        assert counts[tuple(visit.bucket)] == (visit.after.count, visit.stats.count)


def test_each_epoch_visits_each_bucket_and_ends_with_a_summary(run: tuple[TinyCase, History]) -> None:
    case, history = run

    for epoch in (0, 1):
        visited = [tuple(visit.bucket) for visit in history.visits if visit.key == PassKey(epoch)]
        assert sorted(buckets_of(case.root / "edges")) == sorted(visited)
    assert [PassKey(0), PassKey(1)] == [of.key for of in history.passes]
    assert [of.details.num_buckets for of in history.passes] == [9, 9]
    assert all(visit.stats.metrics["loss"] > 0 for visit in history.visits)
    assert all(visit.details.before[MRR] != visit.details.after[MRR] for visit in history.visits[:5])


def test_the_checkpoint_has_the_config_as_it_was_given(run: tuple[TinyCase, History]) -> None:
    case, _ = run
    written = json.loads((case.root / "checkpoint" / "config.json").read_text())

    assert (written["edge_paths"], written["eval_fraction"]) == (["edges"], FRACTION)
    assert written["bucket_order"] == "inside_out"
    assert {name: written[name] for name in case.settings if name != "relations"} == {
        name: value if name != "entities" else {of: {"featurized": False, **keys} for of, keys in value.items()}
        for name, value in case.settings.items()
        if name != "relations"
    }
    lines = map(json.loads, (case.root / "checkpoint" / "training_stats.json").read_text().splitlines())
    assert all("eval_stats_before" not in line for line in lines), "its own evaluation is off"


def test_the_example_has_a_pass_per_chunk_and_edge_path_and_goes_on_from_a_checkpoint(
    peer: Callable[[str], Path], tmp_path: Path
) -> None:
    case = untrained(tmp_path / "case", num_edge_chunks=2, num_epochs=1, partition_sizes=(17, 16))
    shutil.copytree(case.root / "edges", case.root / "more")
    python = peer("torchbiggraph") / "python"
    for num_epochs in (1, 2):
        case.write_config(edge_paths=["edges", "more"], num_epochs=num_epochs)
        done = start(python, case, COMMAND, "--monitor", "monitor", "-p", "lr=0.05")
        assert done.status == 0, done.out + done.err
    history = read_history(case.root / "monitor", pytest.fail)

    assert re.search("keep epoch [01], by held-out MRR\n", done.out)
    lines = re.findall(
        r"^epoch (\d).*: MRR of held-out edges 0\.\d+ before and 0\.\d+ after the visits, .*gap ", done.out, re.M
    )
    assert lines == ["1"] * 4  # a line per path and chunk; the first process did epoch 0
    expected = [PassKey(epoch, path, chunk) for epoch in (0, 1) for path in (0, 1) for chunk in (0, 1)]
    assert [of.key for of in history.passes] == expected
    by_place: dict[tuple[Any, ...], list[VisitRecord]] = {}
    for visit in history.visits:
        by_place.setdefault((tuple(visit.bucket), visit.key.edge_path, visit.key.edge_chunk), []).append(visit)
    assert len(by_place) == 16
    for first, second in by_place.values():
        assert first.after.count == second.after.count > 0
    assert list(range(32)) == [visit.index for visit in history.visits]


def test_figures_agree_with_its_own_evaluator_within_noise(runs: dict[str, tuple[TinyCase, History]]) -> None:
    """Both in one run: it holds out as large a share of what is left, and ranks that among as many negatives.

    Copies of the true entity among them tie in PyTorch-BigGraph where rounding lets them (in two of three cases), so
    its figures are between those of our optimistic and pessimistic ranks.
    """
    case, history = runs["both evaluators"]
    theirs = read_history(case.root / "checkpoint", pytest.fail)

    assert 8 == len(theirs.visits) == len(history.visits)
    for epoch in range(2):
        for when in ("before", "after"):
            figures = [getattr(of, when) for of in theirs.visits if of.key.epoch == epoch]
            total = sum(of.count for of in figures)
            assert total > 2000
            for name, key in (("mrr", "mean_reciprocal_rank"), ("r10", "hits_at_10")):
                mean = sum(of.metrics[name] * of.count for of in figures) / total
                ours = getattr(history.passes[epoch].details, when)
                low, high = (ours[f"both.{kind}.{key}"] for kind in ("pessimistic", "optimistic"))
                # Of numbers between 0 and 1 with this mean the variance is at most mean * (1 - mean); two samples of
                # at least `total` edges with two queries each.
                noise = 4 * (mean * (1 - mean) / total) ** 0.5
                assert low - noise < mean < high + noise, (epoch, when, name)
    gap = history.passes[0].details.gap[MRR.replace("realistic", "pessimistic")]
    assert gap.value > 5 * gap.standard_error, "the first epoch teaches something"


def test_what_cannot_be_monitored_is_refused_before_training(peer: Callable[[str], Path], tmp_path: Path) -> None:
    case = untrained(tmp_path / "case")
    entities = {"user": {"num_partitions": 3, "featurized": True}, "tag": {"num_partitions": 1}}
    case.write_config(num_machines=2, entities=entities, checkpoint_path="monitor")

    done = start(peer("torchbiggraph") / "python", case, COMMAND, "--monitor", "monitor")

    assert (done.status, len(done.faults)) == (1, 3)
    messages = ("num_machines: expected 1, got 2", "that is featurized, got user:", "expected a folder of the monitor")
    assert [message for message, fault in zip(messages, done.faults, strict=True) if message not in fault] == []
    assert not (case.root / "monitor").exists()

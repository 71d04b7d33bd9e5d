"""Bad input: exit status 1, a line per fault that says where, what was expected, found, to be done; nothing written."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pbgeval import EvalError, batch_scorer, edge_scorer, evaluate_triples, side_scorer
from pbgeval.cluster.resources import torch_device
from pbgeval.integrations.pykeen import RankBasedEvaluator
from pbgeval.storage.text import printable
from tests.kit.case import TinyCase
from tests.kit.commands import evaluated, run_command, start_command, writes_nothing
from tests.kit.faults import (
    MODEL,
    SMALL,
    USER,
    Fault,
    as_json,
    candidates,
    check,
    compare,
    copy,
    damaged_chunk,
    data,
    edges,
    fault,
    folder,
    remove,
    setting,
    truncate,
    vectors,
    version,
    write,
)

JSON = ("--config", "eval.json")
ALL = "candidates=all"
EDGES = "edges/edges_1_1.h5"


def python(text: str, message: str) -> Fault:
    return fault(message, write("eval.py", text))


def settings_then(statement: str, message: str) -> Fault:
    """A row whose config file does something with the settings `c`."""
    begin = (
        "class E(BaseException): pass\n"
        "def throw(): raise E('gone')\n"
        "class U(Exception):\n"
        "    def __str__(self): raise RuntimeError('no text')\n"
    )

    def act(root: Path) -> None:
        case = root / "eval.py"
        text = " ".join(case.read_text().partition("return ")[2].split())
        case.write_text(f"{begin}\ndef get_torchbiggraph_config():\n    c = {text}\n    {statement}\n    return c\n")

    return fault(message, act)


ONE_RELATION = [{"name": "knows", "lhs": "user", "rhs": "user", "operator": "none"}]

CONFIGS = [
    fault("eval.py is a folder, not a config file", remove("eval.py"), folder("eval.py")),
    fault(["…comparator…", "…seed…", "…dimensoin…"], setting(comparator="cosine", seed=-1, dimensoin=3)),
    # A Python file with an unlikely mistake
    settings_then("l = []; l.append(l); c['relations'] = l", "…relations[0]: expected a dict with…"),
    settings_then(
        "d = {}; d['num_partitions'] = d; c['entities']['user'] = d", "…num_partitions: expected an int, got {…"
    ),
    settings_then("raise U", "eval.py:8: U: an error that cannot be shown"),
    settings_then("raise E('mine')", "eval.py:8: E: mine"),
    settings_then("raise SystemExit(0)", "eval.py:8: SystemExit: 0"),
    settings_then(
        "import os\n    c['entity_path'] = type('P', (os.PathLike,), {'__fspath__': lambda self: throw()})()",
        "eval.py:2: E: gone",
    ),
    settings_then("c['seed'] = type('R', (), {'__repr__': lambda self: U().x})()", "…seed: expected an int, got…"),
    settings_then("c['seed'] = 10**5000", "…seed: expected an int of at most 64 bits, got an int…"),
    settings_then("c['\\x1b[2J'] = 1", "…\\x1b[2J: unknown key…"),
    settings_then("raise ValueError('x' * 200_000)", "eval.py:8: ValueError: xxx…"),
    settings_then("raise ValueError('\\x1b[31m\\x07\\x00\\u202e')", "…\\x1b[31m\\x07\\x00\\u202e…"),
    settings_then("raise ValueError('\\udc80')", "…ValueError: \\udc80…"),
    # The same in a JSON file
    *(
        fault(f"eval.json: {message}", as_json(**changes), args=JSON)
        for changes, message in (
            ({"checkpoint_path": "a\0b"}, "checkpoint_path: no such directory: …"),
            ({"edge_paths": ["a\0b.tsv"]}, "edge_paths[0]: no such file or directory: …"),
            ({"model": "a\0b"}, "model: no such file or directory: …"),
            ({"entity_path": "x" * 200_000}, "entity_path: no such directory: …"),
            ({"hits_at": list(range(1, 20_001))}, "hits_at: 20000 values of k; at most 1000…"),
            ({"margin": 10**400}, "margin: expected a finite number, got an int of 1329 bits…"),
        )
    ),
    *(
        fault(message, as_json(text), args=JSON)
        for text, message in (
            ("[" * 100_000 + "]" * 100_000, "eval.json: not valid JSON: maximum recursion depth exceeded…"),
            ("{{settings}" + f', "seed": {"9" * 5000}}}', "eval.json: not valid JSON: Exceeds the limit…"),
            (
                "{{settings}" + f', "hits_at": {"[" * 500}{"]" * 500}}}',
                "eval.json: hits_at[0]: expected an int, got [[[[…]]]]…",
            ),
        )
    ),
    fault(
        [f"eval.json: entities['{name}'].num_partitions: expected an int <= 10000, got 10001…" for name in "ab"],
        as_json(
            entities={name: {"num_partitions": 10_001} for name in "ab"},
            relations=[{**ONE_RELATION[0], "lhs": "a", "rhs": "b"}],
        ),
        args=JSON,
    ),
]

FLAGS = [
    *(
        fault(message, args=arguments)
        for arguments, message in (
            (("--workers", "9" * 5000), "…Invalid value for '--workers'…"),
            (("-p", f"relations.{'9' * 5000}.operator=none"), "…expected an index (0, 1, ...), got '999…"),
            (("-p", f"hits_at={'9' * 5000}"), "…hits_at[0]: expected an int, got '999…"),
            (("-p", "entity_path=\x1b[8m"), "…\\x1b[8m…"),
        )
    ),
]

HEADERS = [
    fault(
        "{root}/edges: expected bucket files edges_<l>_<r>.h5 with l in 0..2 and r in 0..2…found nothing…",
        remove("edges/*"),
    ),
    fault(
        f"{{root}}/{MODEL}: attribute format_version: expected 1, found 2; write the file again in that format",
        version(MODEL, 2),
    ),
    fault(
        f"{{root}}/{USER}: expected a complete HDF5 file of … found a truncated one of … bytes; copy it or write it "
        "again",
        truncate(USER),
    ),
    fault(f"{{root}}/{USER}: the embeddings have dimension 7, but the config says 8…", vectors(1, (16, 7))),
    fault(
        f"{{root}}/{USER}: 15 embeddings, but entity_path has 16 entities of type user in partition 1;…",
        vectors(1, (15, 8)),
    ),
    fault(
        "{root}/entity/dynamic_rel_count.txt: no such file, but dynamic_relations = True needs the number of relations;"
        " check entity_path or dynamic_relations (the checkpoint's config.json has false)",
        remove("entity/dynamic_rel_count.txt"),
        write("checkpoint/config.json", '{"dynamic_relations": false}'),
        dynamic=True,
    ),
    fault(
        [
            "{root}/edges/edges_0_0.h5: …",
            "{root}/edges/edges_2_1.h5: …",
            "{root}/checkpoint/embeddings_user_0.v3.h5: …",
            "{root}/checkpoint/embeddings_tag_0.v3.h5: …",
            f"{{root}}/{MODEL}: …",
        ],
        truncate("edges/edges_0_0.h5"),
        truncate("edges/edges_2_1.h5"),
        remove("checkpoint/embeddings_user_0.v3.h5"),
        version("checkpoint/embeddings_tag_0.v3.h5", 7),
        version(MODEL, 7),
    ),
    fault(
        [*["{root}/edges/…"] * 9, "… and 16 more"],
        *(write(f"edges/edges_{lhs}_{rhs}.h5", "") for lhs in range(5) for rhs in range(5)),
        partition_sizes=(3,) * 5,
    ),
]

CONTENT = [
    *(
        fault(
            "entity type 'user', partition 2: expected finite numbers, got NaN or infinite embeddings in rows 3, 4, 5, "
            "6, 7, …;…",
            data("checkpoint/embeddings_user_2.v3.h5", "embeddings", (slice(3, None), 5), value),
        )
        for value in (math.nan, -math.inf)
    ),
    fault(
        f"{{root}}/{MODEL}: dataset model/relations/1/operator/rhs/diagonal: expected finite numbers…first at (3,)…",
        data(MODEL, "model/relations/1/operator/rhs/diagonal", 3, math.nan),
    ),
    *(  # a score that is not a number, though every row is finite
        fault(
            "{root}/edges/edges_…: row …(lhs …, rel …, rhs … candidate …of entity type 'user', partition…got NaN…",
            scale=1e20,
            comparator="l2",
            candidates=candidates,
            precision="float32",
        )
        for candidates in ("sampled", "partition")
    ),
    fault(
        "entity type 'user', partition 1: expected a direction for comparator 'cos', got zero vectors in rows 3, 5;…",
        data(USER, "embeddings", slice(3, 6, 2), 0.0),
        comparator="cos",
        global_emb=False,
    ),
    *(
        fault(
            "…entity type 'user', partition …'cos'…operator 'diagonal'…relation 'likes'… row …edges_…",
            data(MODEL, "model/relations/1/operator/rhs/diagonal", ..., 0.0),
            comparator="cos",
            global_emb=False,
            candidates=candidates,
        )
        for candidates in ("sampled", "partition")
    ),
    *(
        fault(
            f"{{root}}/{EDGES}: dataset {column}, row 3: expected an id in {ids}…got {value};…",
            data(EDGES, column, 3, value),
        )
        for column, value, ids in (
            ("lhs", 16, "0..…"),
            ("rhs", -1, "0..…"),
            ("rel", 4, "0..3"),
        )
    ),
    fault(
        "{root}/edges/edges_2_1.h5: dataset rel, row 7: expected an id in 0..4 (relations has 5), got 5;…",
        data("edges/edges_2_1.h5", "rel", 7, 5),
        dynamic=True,
    ),
    fault(
        "{root}/edges/edges_2_2.h5: dataset lhs, rows 0 to 40: expected data that can be read, found: …copy it or "
        "write it again",
        damaged_chunk,
    ),
]

COMPETITION = [
    fault(
        "…known: expected only edges_<l>_<r>.h5 with l in 0..2 and r in 0..2, found edges_3_0.h5…",
        copy("edges", "known"),
        edges("known", (3, 0)),
        p=f"{ALL} filter_paths=known",
    ),
    *(
        fault(
            f"…known/edges_1_0.h5: dataset {column}, row 4: expected an id in 0..…got {value}…",
            copy("edges", "known"),
            data("known/edges_1_0.h5", column, 4, value),
            p=f"candidates={policy} filter_paths=known",
        )
        for column, value, policy in (("lhs", 99, "all"), ("rel", 7, "partition"), ("rhs", -1, "sampled"))
    ),
    fault(
        "entity type 'tag', partition 0: no edge of train_paths touches it, so num_degree_negs has nothing to draw",
        edges("known", (0, 0), num_edges=3),
        p="candidates=sampled num_degree_negs=2 train_paths=known",
    ),
    fault(["…alice…", "…bob…", "…nobody…"], p=f"{ALL} restrict_entities=alice,bob restrict_relations=nobody"),
    fault(
        [f"…candidates_{lhs}_{rhs}.h5…aligned…" for lhs in range(3) for rhs in range(3)],
        candidates(less_rows=1),
        p="candidate_path=given",
    ),
    *(
        fault(
            f"…candidates_0_0.h5: dataset head: row 1, column 2: expected a row of its partition…found {bad_id}…",
            candidates(bad_id=bad_id),
            p="candidate_path=given",
        )
        for bad_id in (99, -1)
    ),
    fault(
        "…candidates_2_2.h5…",
        candidates(),
        remove("given/candidates_2_2.h5"),
        p="candidate_path=given",
    ),
]

OUTPUT = [
    fault(
        "eval.py: this is a file, not a directory; choose another output",
        args=("--output", "eval.py", "--overwrite"),
        world=SMALL,
    ),
    fault("output…", folder("output/metrics.json"), args=("--output", "output"), world=SMALL),
    *(
        fault(f"{output}…cannot …; choose another output", args=("--output", output), world=SMALL)
        for output in ("eval.py/below", "x" * 300)
    ),
]


ROWS = [*CONFIGS, *FLAGS, *HEADERS, *CONTENT, *COMPETITION, *OUTPUT]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.lines[0][:70])
def test_a_fault_is_its_lines_and_nothing_is_written(row: Fault, tmp_path: Path) -> None:
    check(row, tmp_path / "case")


def test_cuda_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    line = "device cuda: torch finds no CUDA device; use device cpu"

    check(fault(line, args=("--device", "cuda")), tmp_path / "case")
    sizes: dict[str, Any] = {"num_entities": 5, "num_relations": 1}
    model = torch.nn.Linear(2, 2)
    doors: list[Callable[[str], object]] = [
        lambda device: evaluate_triples(edge_scorer(print, **sizes), [(0, 0, 1)], device=device),
        lambda device: edge_scorer(print, device=device, **sizes),
        lambda device: batch_scorer(print, device=device, **sizes),
        lambda device: side_scorer(print, device=device, **sizes),
        lambda device: RankBasedEvaluator(device=device),
        lambda device: RankBasedEvaluator().evaluate(model, [(0, 0, 1)], training=[(0, 0, 1)], device=device),
    ]
    for number, door in enumerate(doors):
        with pytest.raises(EvalError, match=f"^{line}$"):
            door("cuda")
        with pytest.raises(EvalError, match=r"^device: expected .*, got 'gpu'$"):
            door("gpu")
        if number in (1, 2, 3, 5):  # as torch takes it
            with pytest.raises(EvalError, match=f"^{line}$"):
                door("cuda:1")


def test_a_gpu_that_is_not_there_is_refused_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)

    assert torch_device("cuda:1") == torch.device("cuda", 1)
    assert torch_device(torch.device("cpu")) == torch.device("cpu")
    with pytest.raises(EvalError, match="device cuda:2: torch finds cuda:0 to cuda:1"):
        torch_device("cuda:2")


# In two workers


@pytest.mark.slow
def test_a_fault_in_one_worker_ends_the_other_soon(tmp_path: Path) -> None:
    case = TinyCase.write(
        tmp_path / "case", dynamic=True, partition_sizes=(20_000,) * 3, edges_per_bucket=20_000, candidates="partition"
    )
    case.spoil_embeddings("user", 0, 3, math.nan)
    (tmp_path / "temporary").mkdir()
    with writes_nothing(tmp_path):
        environment = {"TMPDIR": str(tmp_path / "temporary")}
        done = start_command(case, "--workers", "2", "--output", "output", environment=environment)

    # Worker 0 meets the fault in its first bucket; four of the nine do without partition 0, and worker 1 gives up
    # before it has finished them all.
    compare(done, ["entity type 'user', partition 0: expected finite numbers, …"], case.root)
    assert len([line for line in done.faults if " bucket (" in line]) <= 3


# Odd, but no fault


def test_a_missing_model_file_is_none_of_the_matter_where_nothing_has_parameters(tmp_path: Path) -> None:
    case = TinyCase.write(tmp_path / "case", relations=ONE_RELATION, global_emb=False)
    case.model.unlink()

    assert run_command(case, "--workers", "1").status == 0


def test_an_infinite_score_is_a_number(tmp_path: Path) -> None:
    case = TinyCase.write(tmp_path / "case", relations=ONE_RELATION, global_emb=False, candidates="partition")
    for partition in range(3):
        case.spoil_embeddings("user", partition, slice(None), 3e38)

    metrics = evaluated(case)["metrics"]

    assert (metrics["both.optimistic.mean_rank"], metrics["both.query_auc"]) == (1.0, 0.5)  # all are tied at infinity


def test_a_loss_that_overflows_is_null_and_no_fault(tmp_path: Path) -> None:
    document = evaluated(TinyCase.write(tmp_path / "case", scale=1e18, compute_loss=True))

    assert document["metrics"]["both.loss"] is None
    assert document["diagnostics"]["both"]["num_undefined_losses"] > 0
    assert document["metrics"]["both.realistic.mean_rank"] >= 1


def test_what_controls_a_terminal_is_escaped() -> None:
    plain = "naïve 東京\u3000a\u00a0b \U0001f600"
    assert [printable(text) for text in (plain, "a\x1b[0m\r\n\t\0\x7f\x9b", "\u202egnp.exe \u2028 \udcff")] == [
        plain,
        r"a\x1b[0m\r\n\t\x00\x7f\x9b",
        r"\u202egnp.exe \u2028 \udcff",
    ]
    long = printable("a" * 5000 + "; do this")
    assert (len(long), long[-10:]) == (2000, "a; do this")

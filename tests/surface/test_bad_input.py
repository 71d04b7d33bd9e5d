"""Bad input: exit status 1, a line per fault that says where, what was expected, found, to be done; nothing written."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from tests import pbg_files
from tests.tiny_checkpoint import (
    VERSION,
    Done,
    TinyCase,
    metrics_of,
    run_command,
    run_main,
    start_command,
    writes_nothing,
)


@pytest.fixture
def case(tmp_path: Path) -> TinyCase:
    return TinyCase.write(tmp_path / "case")


@pytest.fixture
def dynamic_case(tmp_path: Path) -> TinyCase:
    return TinyCase.write(tmp_path / "case", dynamic=True)


def refused(case: TinyCase, *arguments: str) -> list[str]:
    """Run on one worker; return the faults, one per line."""
    with writes_nothing(case.root):
        done = run_command(case, "--output", "output", "--workers", "1", *arguments)
    return faults_of(done)


def faults_of(done: Done) -> list[str]:
    lines = [line for line in done.faults if " bucket (" not in line]  # progress comes before a fault of the data
    assert 1 == done.status
    assert "" == done.out
    assert lines
    assert not any(line.startswith((" ", "Traceback", "E1", "W1")) for line in lines), lines
    return lines


def refused_once(case: TinyCase, *arguments: str) -> str:
    faults = refused(case, *arguments)
    assert 1 == len(faults), faults
    return faults[0]


def truncate(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 2 // 3])


def set_format_version(path: Path, version: int) -> None:
    with h5py.File(path, "r+") as file:
        file.attrs["format_version"] = version


def set_value(path: Path, dataset: str, at: Any, value: float) -> None:
    with h5py.File(path, "r+") as file:
        file[dataset][at] = value


def remove_all(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


def with_embeddings(case: TinyCase, rows: int, columns: int) -> Path:
    return pbg_files.write_embeddings(case.root / "checkpoint", "user", 1, np.ones((rows, columns)), version=VERSION)


FILES: dict[str, Callable[[TinyCase], Path]] = {
    "edges": lambda c: c.edges(1, 1),
    "embeddings": lambda c: c.embeddings("user", 1),
    "model": lambda c: c.model,
}
DIAGONAL = "model/relations/1/operator/rhs/diagonal"
NEITHER = "eval.py: expected a function get_config() or get_torchbiggraph_config(), found neither"
BY_ITS_COUNT = "expected the number of relations (dynamic_relations is set), found no such file; check entity_path"


# What is done to a checkpoint, what its line starts with, and what else is in the line.
BAD: dict[str, tuple[Callable[[TinyCase], object], Callable[[TinyCase], str], tuple[str, ...]]] = {
    "a missing config": (lambda c: c.config.unlink(), lambda c: f"{c.config}: no such config file", ()),
    "a directory as config": (
        lambda c: (c.config.unlink(), c.config.mkdir()),
        lambda c: f"{c.config}: expected a config file, found a directory",
        (),
    ),
    "no text": (lambda c: c.config.write_bytes(b"\xff\xfe\x00"), lambda c: "eval.py", ()),
    "exit": (lambda c: c.config.write_text("raise SystemExit(0)\n"), lambda c: "eval.py:1: SystemExit: 0", ()),
    "no function": (lambda c: c.config.write_text("x = 1\n"), lambda c: NEITHER, ()),
    "an unknown key": (
        lambda c: c.write_config(comparitor="dot"),
        lambda c: "eval.py: comparitor: unknown key; did you mean 'comparator'?",
        (),
    ),
    "no checkpoint": (
        lambda c: shutil.rmtree(c.root / "checkpoint"),
        lambda c: (
            f"eval.py: checkpoint_path: expected a directory; {c.root / 'checkpoint'} (in the working directory) does "
            "not exist"
        ),
        (),
    ),
    "no edges": (
        lambda c: remove_all(c.root / "edges"),
        lambda c: f"{c.root / 'edges'}: expected bucket files edges_<l>_<r>.h5 with l in 0..2 and r in 0..2",
        ("found nothing",),
    ),
    **{
        f"format of {kind}": (
            lambda c, path=path: set_format_version(path(c), 2),  # type: ignore[misc]
            lambda c, path=path: (  # type: ignore[misc]
                f"{path(c)}: attribute format_version: expected 1, found 2; write the file again in that format"
            ),
            (),
        )
        for kind, path in FILES.items()
    },
    **{
        f"half of {kind}": (
            lambda c, path=path: truncate(path(c)),  # type: ignore[misc]
            lambda c, path=path: f"{path(c)}: expected a complete HDF5 file of ",  # type: ignore[misc]
            ("found a truncated one of ", " bytes; copy it or write it again"),
        )
        for kind, path in FILES.items()
    },
    **{
        f"{len(content)} bytes of no HDF5": (
            lambda c, content=content: c.edges(1, 1).write_bytes(content),  # type: ignore[misc]
            lambda c, content=content: (  # type: ignore[misc]
                f"{c.edges(1, 1)}: expected an HDF5 file, found another format of {len(content)} bytes; check the path"
            ),
            (),
        )
        for content in (b"", b"not HDF5")
    },
    "too few columns": (
        lambda c: with_embeddings(c, 16, 7),
        lambda c: f"{c.embeddings('user', 1)}: dataset embeddings: expected 8 columns, found 7;",
        (),
    ),
    "fewer embeddings than entities": (
        lambda c: with_embeddings(c, 15, 8),
        lambda c: (
            f"{c.embeddings('user', 1)}: dataset embeddings: expected 16 rows (the entity count of type user, "
            "partition 1), found 15;"
        ),
        (),
    ),
    "a missing partition": (
        lambda c: c.embeddings("user", 2).unlink(),
        lambda c: f"{c.embeddings('user', 2)}: expected this file (checkpoint version {VERSION}), found ",
        (),
    ),
    **{
        f"{value} in embeddings": (
            lambda c, value=value: c.spoil_embeddings("user", 2, (slice(3, None), 5), value),  # type: ignore[misc]
            lambda c: "entity type 'user', partition 2: expected finite numbers, got NaN or infinite embeddings",
            ("in rows 3, 4, 5, 6, 7, ...;",),
        )
        for value in (math.nan, math.inf, -math.inf)
    },
    **{
        f"{value} in parameters": (
            lambda c, value=value: set_value(c.model, DIAGONAL, 3, value),  # type: ignore[misc]
            lambda c: f"{c.model}: dataset {DIAGONAL}: expected finite numbers",
            ("first at (3,)",),
        )
        for value in (math.nan, math.inf)
    },
    **{
        f"{value} in {column}": (
            lambda c, column=column, value=value: c.spoil_edges(1, 1, column, 3, value),  # type: ignore[misc]
            lambda c, column=column, known=known: (  # type: ignore[misc]
                f"{c.edges(1, 1)}: dataset {column}, row 3: expected an id in {known}"
            ),
            (f"got {value};",),
        )
        for column, value, known in (
            ("lhs", 16, "0.."),
            ("rhs", -1, "0.."),
            ("lhs", 2**62, "0.."),
            ("rel", 4, "0..3"),
            ("rel", -1, "0..3"),
        )
    },
    "a chunk that cannot be unpacked": (
        lambda c: damage_chunk(c),
        lambda c: f"{c.edges(2, 2)}: dataset lhs, rows 0 to 40: expected data that can be read, found: ",
        ("copy it or write it again",),
    ),
}


@pytest.mark.parametrize(("spoil", "start", "parts"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_one_line(
    case: TinyCase, spoil: Callable[[TinyCase], object], start: Callable[[TinyCase], str], parts: tuple[str, ...]
) -> None:
    spoil(case)

    fault = refused_once(case)

    assert fault.startswith(start(case)), fault
    assert [] == [part for part in parts if part not in fault], fault


@pytest.mark.parametrize(
    ("override", "fault"),
    [
        ("dimensoin=8", "unknown key; did you mean 'dimension'?"),
        ("dimension", "expected KEY=VALUE, found no '='"),
        ("seed=-1", "expected an int >= 0 and < 2**63, got -1"),
    ],
)
def test_a_wrong_override(case: TinyCase, override: str, fault: str) -> None:
    assert f"-p {override}: {fault}" == refused_once(case, "-p", override)


def test_a_missing_model_file_where_operators_have_parameters(case: TinyCase) -> None:
    case.model.unlink()

    faults = refused(case)
    assert all(fault.startswith(f"{case.model}: expected") for fault in faults)
    for parameter in ("1/operator/rhs/diagonal", "2/operator/rhs/translation", "3/operator/rhs/real"):
        assert 1 == sum(parameter in fault for fault in faults)


def test_a_missing_model_file_is_none_of_the_matter_where_nothing_has_parameters(tmp_path: Path) -> None:
    relations = [{"name": "knows", "lhs": "user", "rhs": "user", "operator": "none"}]
    case = TinyCase.write(tmp_path / "case", relations=relations, global_emb=False)
    case.model.unlink()

    assert 0 == run_command(case, "--workers", "1").status


def test_a_missing_count_of_dynamic_relations(dynamic_case: TinyCase) -> None:
    path = dynamic_case.root / "entity" / "dynamic_rel_count.txt"
    path.unlink()

    assert f"{path}: {BY_ITS_COUNT}" == refused_once(dynamic_case)


@pytest.mark.parametrize("candidates", ["sampled", "partition"])
@pytest.mark.parametrize("comparator", ["squared_l2", "l2"])
def test_a_score_that_is_not_a_number_though_every_row_is_finite(
    tmp_path: Path, comparator: str, candidates: str
) -> None:
    case = TinyCase.write(tmp_path / "case", scale=1e20, comparator=comparator, candidates=candidates)

    fault = refused_once(case)
    assert fault.startswith(f"{case.root / 'edges'}/edges_")
    for part in (": row ", "(lhs ", ", rel ", ", rhs ", " candidate ", "of entity type 'user', partition", "got NaN"):
        assert part in fault


def test_an_infinite_score_is_a_number(tmp_path: Path) -> None:
    relations = [{"name": "knows", "lhs": "user", "rhs": "user", "operator": "none"}]
    case = TinyCase.write(tmp_path / "case", relations=relations, global_emb=False, candidates="partition")
    for partition in range(3):
        case.spoil_embeddings("user", partition, slice(None), 3e38)

    done = run_command(case, "--workers", "1", "--output", "output")

    assert 0 == done.status
    metrics = metrics_of(case.root / "output")["metrics"]
    assert (1.0, 0.5) == (metrics["both.optimistic.mean_rank"], metrics["both.query_auc"])  # all are tied at infinity


def test_zero_vectors_under_cos(tmp_path: Path) -> None:
    case = TinyCase.write(tmp_path / "case", comparator="cos", global_emb=False)
    case.spoil_embeddings("user", 1, slice(3, 6, 2), 0.0)

    fault = "entity type 'user', partition 1: expected a direction for comparator 'cos', got zero vectors in rows 3, 5;"
    assert refused_once(case).startswith(fault)


@pytest.mark.parametrize("candidates", ["sampled", "partition"])
def test_zero_vectors_that_an_operator_makes_under_cos(tmp_path: Path, candidates: str) -> None:
    case = TinyCase.write(tmp_path / "case", comparator="cos", global_emb=False, candidates=candidates)
    set_value(case.model, DIAGONAL, ..., 0.0)

    fault = refused_once(case)
    for part in (
        "entity type 'user', partition ",
        "'cos'",
        "operator 'diagonal'",
        "relation 'likes'",
        " row ",
        "edges_",
    ):
        assert part in fault


def test_a_dynamic_relation_out_of_range(dynamic_case: TinyCase) -> None:
    dynamic_case.spoil_edges(2, 1, "rel", 7, 5)

    where = f"{dynamic_case.edges(2, 1)}: dataset rel, row 7"
    assert refused_once(dynamic_case).startswith(f"{where}: expected an id in 0..4 (relations has 5), got 5;")


def damage_chunk(case: TinyCase) -> Path:
    """Write bucket (2, 2) compressed, and spoil the bytes of a chunk; its header stays right."""
    zeros = np.zeros(40, np.int64)
    layout = pbg_files.LAYOUTS["gzip_shuffle"]
    path = pbg_files.write_edges(case.root / "edges", (2, 2), zeros, zeros, zeros, layout=layout)
    with h5py.File(path, "r") as file:
        chunk = file["lhs"].id.get_chunk_info(3)
    content = bytearray(path.read_bytes())
    content[chunk.byte_offset : chunk.byte_offset + chunk.size] = b"\x00" * chunk.size
    path.write_bytes(content)
    return path


def test_a_loss_that_overflows_is_null_and_no_fault(tmp_path: Path) -> None:
    case = TinyCase.write(tmp_path / "case", scale=1e18, compute_loss=True)

    assert 0 == run_command(case, "--workers", "1", "--output", "output").status

    document = metrics_of(case.root / "output")
    assert document["metrics"]["both.loss"] is None
    assert document["diagnostics"]["both"]["num_undefined_losses"] > 0
    assert document["metrics"]["both.realistic.mean_rank"] >= 1


# Flags


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        (("--workers", "0"), ("--workers 0", "expected", ">= 1")),
        (("--workers", "-2"), ("--workers -2", "expected", ">= 1")),
        (("--workers", "two"), ("--workers", "int", "--help")),
        (("--wrokers", "2"), ("--wrokers", "--workers", "--help")),
        (("--device", "tpu"), ("--device tpu", "auto, cpu, cuda")),
        (("-p",), ("-p", "argument", "--help")),
        (("superfluous",), ("superfluous", "--help")),
    ],
    ids=" ".join,
)
def test_a_wrong_flag(case: TinyCase, flags: tuple[str, ...], parts: tuple[str, ...]) -> None:
    with writes_nothing(case.root):
        fault = "\n".join(faults_of(run_command(case, *flags)))

    assert "\n" not in fault
    assert [] == [part for part in parts if part not in fault], fault


def test_no_config(tmp_path: Path) -> None:
    done = run_main(cwd=tmp_path)

    assert 1 == done.status
    assert 1 == len(done.faults)
    assert "--config" in done.faults[0]


def test_cuda_without_a_gpu(case: TinyCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)

    fault = "--device cuda: expected a CUDA device, found none that torch can use; use --device cpu"
    assert fault == refused_once(case, "--device", "cuda")


# Several faults


def test_faults_of_all_files_come_at_once(case: TinyCase) -> None:
    truncate(case.edges(0, 0))
    truncate(case.edges(2, 1))
    case.embeddings("user", 0).unlink()
    set_format_version(case.embeddings("tag", 0), 7)
    set_format_version(case.model, 7)

    faults = refused(case)
    expected = [
        case.edges(0, 0),
        case.edges(2, 1),
        case.embeddings("user", 0),
        case.embeddings("tag", 0),
        case.model,
    ]
    assert sorted(map(str, expected)) == sorted(fault.split(": ")[0] for fault in faults)


def test_at_most_nine_faults_are_shown_and_the_rest_counted(tmp_path: Path) -> None:
    case = TinyCase.write(tmp_path / "case", partition_sizes=(3,) * 5)
    for lhs, rhs in np.ndindex(5, 5):
        case.edges(lhs, rhs).write_bytes(b"")

    faults = refused(case)
    assert 10 == len(faults)
    assert "... and 16 more" == faults[-1]


# The same inside workers of a group


def nan_embeddings(case: TinyCase) -> str:
    case.spoil_embeddings("user", 2, 3, math.nan)
    return "entity type 'user', partition 2: expected finite numbers, got NaN or infinite embeddings in rows 3;"


def overflowing_scores(case: TinyCase) -> str:
    case.write_config(comparator="squared_l2", candidates="partition")
    case.spoil_embeddings("user", 2, slice(None), 1e20)
    return f"{case.root / 'edges'}/edges_"


def damaged_chunk(case: TinyCase) -> str:
    return f"{damage_chunk(case)}: dataset lhs, rows 0 to 40: expected data that can be read"


@pytest.mark.parametrize(
    "spoil",
    [
        nan_embeddings,
        pytest.param(overflowing_scores, marks=pytest.mark.slow),
        pytest.param(damaged_chunk, marks=pytest.mark.slow),
    ],
)
def test_a_fault_inside_a_worker_of_two_is_returned(case: TinyCase, spoil: Callable[[TinyCase], str]) -> None:
    fault = spoil(case)
    environment = {"TMPDIR": str(case.root.parent / "temporary")}
    (case.root.parent / "temporary").mkdir()

    with writes_nothing(case.root):
        done = start_command(case, "--workers", "2", "--quiet", "--output", "output", environment=environment)

    faults = faults_of(done)
    assert all(line.startswith(fault) for line in faults), faults
    assert len(faults) <= 2  # each worker may meet a score of its own
    assert spoil is overflowing_scores or 1 == len(faults)
    assert [] == list((case.root.parent / "temporary").iterdir())


@pytest.mark.slow
def test_a_fault_in_one_worker_ends_the_other_soon(tmp_path: Path) -> None:
    case = TinyCase.write(
        tmp_path / "case", dynamic=True, partition_sizes=(20_000,) * 3, edges_per_bucket=20_000, candidates="partition"
    )
    case.spoil_embeddings("user", 0, 3, math.nan)
    done = start_command(case, "--workers", "2", "--output", "output")

    # Worker 0 meets the fault in its first bucket; worker 1 has others to do, and gives up after the one in hand.
    assert 1 == len(faults_of(done))
    assert len([line for line in done.faults if " bucket (" in line]) <= 2

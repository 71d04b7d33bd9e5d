"""Bad input: exit status 1, a line per fault that says where, what was expected, found, to be done; nothing written."""

from __future__ import annotations

import math
import shutil
import time
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


# The config file


def test_a_missing_config(case: TinyCase) -> None:
    case.config.unlink()

    assert f"{case.config}: no such config file" == refused_once(case)


def test_a_directory_as_config(case: TinyCase) -> None:
    case.config.unlink()
    case.config.mkdir()

    assert f"{case.config}: expected a config file, found a directory" == refused_once(case)


def test_a_config_that_is_no_text(case: TinyCase) -> None:
    case.config.write_bytes(b"\xff\xfe\x00")

    assert refused_once(case).startswith("eval.py")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("def f(:\n", "eval.py:1: SyntaxError: invalid syntax"),
        ("\ndef get_config():\n    return 1 / 0\n", "eval.py:3: ZeroDivisionError: division by zero"),
        ("import nothing_of_that_name\n", "eval.py:1: ModuleNotFoundError: No module named 'nothing_of_that_name'"),
        ("raise SystemExit(0)\n", "eval.py:1: SystemExit: 0"),
        ("x = 1\n", "eval.py: expected a function get_config() or get_torchbiggraph_config(), found neither"),
    ],
    ids=["syntax error", "exception", "missing module", "exit", "no function"],
)
def test_a_config_that_does_not_run(case: TinyCase, text: str, fault: str) -> None:
    case.config.write_text(text)

    assert fault == refused_once(case)


@pytest.mark.parametrize(
    ("override", "fault"),
    [
        ("dimensoin=8", "unknown key; did you mean 'dimension'?"),
        ("dimension=abc", "expected an int, got 'abc' (str)"),
        ("relations.1.operator=diagnal", "expected one of affine, complex_diagonal, diagonal, linear, none, "),
        ("comparator=cosine", "expected one of dot, cos, l2, squared_l2, l1, complex_l1, clamped_dot, got 'cosine'"),
        ("dimension", "expected KEY=VALUE, found no '='"),
        ("seed=-1", "expected an int >= 0 and < 2**63, got -1"),
    ],
)
def test_a_wrong_override(case: TinyCase, override: str, fault: str) -> None:
    assert refused_once(case, "-p", override).startswith(f"-p {override}: {fault}")


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"comparitor": "dot"}, "eval.py: comparitor: unknown key; did you mean 'comparator'?"),
        ({"dimension": "8"}, "eval.py: dimension: expected an int, got '8' (str)"),
    ],
    ids=["unknown key", "wrong type"],
)
def test_a_wrong_key_in_the_file(case: TinyCase, settings: dict[str, Any], fault: str) -> None:
    case.write_config(**settings)

    assert fault == refused_once(case)


@pytest.mark.parametrize(("key", "folder"), [("edge_paths[0]", "edges"), ("checkpoint_path", "checkpoint")])
def test_a_path_that_does_not_exist(case: TinyCase, key: str, folder: str) -> None:
    shutil.rmtree(case.root / folder)

    where = f"{case.root / folder} (in the working directory) does not exist"
    assert f"eval.py: {key}: expected a directory; {where}" == refused_once(case)


# Headers of files


def test_a_folder_without_bucket_files(case: TinyCase) -> None:
    for path in (case.root / "edges").iterdir():
        path.unlink()

    fault = refused_once(case)
    assert fault.startswith(
        f"{case.root / 'edges'}: expected bucket files edges_<l>_<r>.h5 with l in 0..2 and r in 0..2"
    )
    assert "found nothing" in fault


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


@pytest.mark.parametrize("kind", ["edges", "embeddings", "model"])
def test_a_wrong_format_version(case: TinyCase, kind: str) -> None:
    path = {"edges": case.edges(0, 1), "embeddings": case.embeddings("tag", 0), "model": case.model}[kind]
    set_format_version(path, 2)

    fault = "attribute format_version: expected 1, found 2; write the file again in that format"
    assert f"{path}: {fault}" == refused_once(case)


@pytest.mark.parametrize("kind", ["edges", "embeddings", "model"])
def test_a_truncated_file(case: TinyCase, kind: str) -> None:
    path = {"edges": case.edges(1, 1), "embeddings": case.embeddings("user", 1), "model": case.model}[kind]
    truncate(path)

    fault = refused_once(case)
    assert fault.startswith(f"{path}: expected a complete HDF5 file of ")
    assert fault.endswith(f"found a truncated one of {path.stat().st_size} bytes; copy it or write it again")


@pytest.mark.parametrize("content", [b"", b"not HDF5"], ids=["empty", "text"])
def test_a_file_of_another_format(case: TinyCase, content: bytes) -> None:
    case.edges(1, 1).write_bytes(content)

    fault = f"expected an HDF5 file, found another format of {len(content)} bytes; check the path"
    assert f"{case.edges(1, 1)}: {fault}" == refused_once(case)


def test_embeddings_of_the_wrong_width(case: TinyCase) -> None:
    path = pbg_files.write_embeddings(case.root / "checkpoint", "user", 1, np.ones((16, 7)), version=VERSION)

    assert refused_once(case).startswith(f"{path}: dataset embeddings: expected 8 columns, found 7;")


def test_fewer_embeddings_than_entities(case: TinyCase) -> None:
    path = pbg_files.write_embeddings(case.root / "checkpoint", "user", 1, np.ones((15, 8)), version=VERSION)

    fault = "dataset embeddings: expected 16 rows (the entity count of type user, partition 1), found 15;"
    assert refused_once(case).startswith(f"{path}: {fault}")


def test_a_missing_partition_file(case: TinyCase) -> None:
    case.embeddings("user", 2).unlink()

    fault = f"{case.embeddings('user', 2)}: expected this file (checkpoint version {VERSION}), found "
    assert refused_once(case).startswith(fault)


def test_a_missing_count_of_dynamic_relations(dynamic_case: TinyCase) -> None:
    path = dynamic_case.root / "entity" / "dynamic_rel_count.txt"
    path.unlink()

    fault = "expected the number of relations (dynamic_relations is set), found no such file; check entity_path"
    assert f"{path}: {fault}" == refused_once(dynamic_case)


# What only reading the data shows


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_embeddings_that_are_not_finite(case: TinyCase, value: float) -> None:
    case.spoil_embeddings("user", 2, (slice(3, None), 5), value)

    fault = refused_once(case)
    assert fault.startswith("entity type 'user', partition 2: expected finite numbers, got NaN or infinite embeddings")
    assert "in rows 3, 4, 5, 6, 7, ...;" in fault


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_parameters_that_are_not_finite(case: TinyCase, value: float) -> None:
    with h5py.File(case.model, "r+") as file:
        file["model/relations/1/operator/rhs/diagonal"][3] = value

    fault = refused_once(case)
    assert fault.startswith(f"{case.model}: dataset model/relations/1/operator/rhs/diagonal: expected finite numbers")
    assert "first at (3,)" in fault


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
    with h5py.File(case.model, "r+") as file:
        file["model/relations/1/operator/rhs/diagonal"][...] = 0.0

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


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [("lhs", 16, None), ("rhs", -1, None), ("lhs", 2**62, None), ("rel", 4, "0..3"), ("rel", -1, "0..3")],
)
def test_an_id_out_of_range(case: TinyCase, column: str, value: int, expected: str | None) -> None:
    case.spoil_edges(1, 1, column, 3, value)

    fault = refused_once(case)
    assert fault.startswith(f"{case.edges(1, 1)}: dataset {column}, row 3: expected an id in {expected or '0..'}")
    assert f"got {value};" in fault


def test_a_dynamic_relation_out_of_range(dynamic_case: TinyCase) -> None:
    dynamic_case.spoil_edges(2, 1, "rel", 7, 5)

    where = f"{dynamic_case.edges(2, 1)}: dataset rel, row 7"
    assert refused_once(dynamic_case).startswith(f"{where}: expected an id in 0..4 (relations has 5), got 5;")


def test_a_chunk_that_cannot_be_unpacked(tmp_path: Path) -> None:
    case = TinyCase.write(tmp_path / "case")
    path = damage_chunk(case)

    fault = refused_once(case)
    assert fault.startswith(f"{path}: dataset lhs, rows 0 to 40: expected data that can be read, found: ")
    assert fault.endswith("copy it or write it again")


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
        (("--device", "tpu"), ("--device", "'tpu'", "'auto', 'cpu', 'cuda'")),
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


def test_faults_of_the_config_come_at_once(case: TinyCase) -> None:
    case.write_config(comparator="cosine", seed=-1, dimensoin=3)

    assert 3 == len(refused(case))


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
    began = time.monotonic()
    done = start_command(case, "--workers", "2", "--output", "output")
    seconds = time.monotonic() - began

    # Worker 0 meets the fault in its first bucket; worker 1 has others to do, and gives up after the one in hand.
    assert 1 == len(faults_of(done))
    assert len([line for line in done.faults if " bucket (" in line]) <= 2
    assert seconds < 60

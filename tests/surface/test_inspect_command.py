"""`kgeval-dist inspect`: what files hold, in words; and what is none of ours, in one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.kit import pbg_files
from tests.kit.case import TinyCase
from tests.kit.commands import Done, run_main


def lines_of(done: Done) -> dict[str, dict[str, str]]:
    """Return what was said of each path."""
    found: dict[str, dict[str, str]] = {}
    for block in done.out.split("\n\n"):
        name, *lines = block.splitlines()
        found[name] = dict(line.strip().split("  ", 1) for line in lines)
    return {name: {what: value.strip() for what, value in lines.items()} for name, lines in found.items()}


def test_a_folder_of_everything_is_described(tmp_path: Path) -> None:
    TinyCase.write(tmp_path, partition_sizes=(7, 5), num_tags=3, edges_per_bucket=10)

    done = run_main("inspect", ".", cwd=tmp_path)
    assert done.printed
    found = lines_of(done)
    size = sum(path.stat().st_size for path in (tmp_path / "edges").iterdir())
    assert found.pop("edges") == {
        "kind": "folder of edges",
        "edges": "46",
        "buckets": "4 of 4 (2 left x 2 right partitions)",
        "edges per bucket": "10 to 13, most in edges_1_1.h5",
        "weights": "no",
        "features": "no",
        "bytes": f"{size:,}",
    }
    assert found.pop("entity") == {
        "kind": "folder of entities",
        "type user": "12 entities in 2 partitions of 5 to 7",
        "type tag": "3 entities in 1 partition",
        "names": "none",
    }
    parameters = ("entities/tag/global_embedding: 8", "entities/user/global_embedding: 8", "operator/rhs/diagonal: 8")
    parameters += ("operator/rhs/imag: 4", "operator/rhs/real: 4", "operator/rhs/translation: 8")
    assert found == {
        "checkpoint": {
            "kind": "checkpoint",
            "version": "3",
            "type tag": "3 entities in 1 partition; dimension 8, float32",
            "type user": "12 entities in 2 partitions of 5 to 7; dimension 8, float32",
            "parameters": "; ".join(f"{of} values" for of in parameters),
            "bytes": found["checkpoint"]["bytes"],
        }
    }


def test_a_bucket_is_described_with_its_ranges_and_first_rows(tmp_path: Path) -> None:
    pbg_files.write_edges(
        tmp_path, (2, 0), [5, 0, 9, 3], [1, 1, 0, 4], [7, 7, 2, 8], weight=[0.5, -1.5, 2.0, 0.0], dtype=np.int32
    )

    found = lines_of(run_main("inspect", "edges_2_0.h5", cwd=tmp_path))["edges_2_0.h5"]

    expected = {
        "kind": "bucket: left partition 2, right partition 0",
        "edges": "4",
        "lhs": "0 to 9, int32, not chunked",
        "rel": "0 to 4, int32, not chunked",
        "weight": "-1.5 to 2.0, float64, not chunked",
        "row 0": "left 5, relation 1, right 7",
        "row 2": "left 9, relation 0, right 2",
    }
    assert {name: found.get(name) for name in (*expected, "row 3")} == expected | {"row 3": None}


def test_an_empty_bucket_is_described(tmp_path: Path) -> None:
    pbg_files.write_edges(tmp_path, (0, 0), [], [], [], layout=pbg_files.LAYOUTS["chunked"])

    found = lines_of(run_main("inspect", "edges_0_0.h5", cwd=tmp_path))["edges_0_0.h5"]

    assert (found["edges"], found["rel"]) == ("0", "no rows, int64, stored in chunks of 7 rows")


def test_a_checkpoint_without_operators_says_so_and_names_other_versions(tmp_path: Path) -> None:
    for version in (3, 4):
        pbg_files.write_embeddings(tmp_path, "user", 0, np.zeros((2, 4)), version=version)
    pbg_files.write_checkpoint_version(tmp_path, 4)

    found = lines_of(run_main("inspect", str(tmp_path), cwd=tmp_path))[str(tmp_path)]

    assert tuple(found[key] for key in ("version", "parameters", "other versions")) == (
        "4",
        "none (model.v4.h5 is missing)",
        "3",
    )

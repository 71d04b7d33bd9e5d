"""`kgeval-dist types`: the table, the file, and faults in one line."""

from __future__ import annotations

import json
from pathlib import Path

from tests.kit.commands import lacking, run_main
from tests.unit.test_taxonomy import DATA

FILES = [f"--{name}={DATA / file}.tsv" for name, file in (("taxonomy", "taxonomy"), ("truth", "truth"))]
FILES.append(f"--ranking={DATA / 'ranking.tsv'}")


def test_the_table_has_the_mean_at_each_cutoff_and_says_what_is_odd(tmp_path: Path) -> None:
    printed = run_main("types", *FILES, "-k", "3", "-k", "1", cwd=tmp_path).printed
    lines = [line.replace("│", " ").split() for line in printed.splitlines()]
    assert not lacking(lines, ["at", "1", "0.4048"], ["at", "3", "0.5094"])
    heading = "8 queries, linear gain, discount jk"
    assert not lacking(printed, heading, "2 left out: no true type in the taxonomy")


def test_the_file_has_the_value_of_each_query(tmp_path: Path) -> None:
    flags = ["--gain", "exponential", "--discount", "standard", "--base", "3", "-k", "3", "--output", "r.json"]
    assert run_main("types", *FILES, *flags, cwd=tmp_path).printed
    document = json.loads((tmp_path / "r.json").read_text())
    assert (
        document["gain"],
        document["discount"],
        document["base"],
        document["counts"]["num_undefined"],
    ) == ("exponential", "standard", 3.0, 2)
    assert tuple(document["queries"][query]["ndcg_at_3"] for query in ("perfect", "empty", "foreign")) == (
        1.0,
        0.0,
        None,
    )

"""docs/tutorial.md: its commands, pasted one after the other into a shell, give what the page says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.pasted_commands import REPOSITORY, blocks_of, pasted
from tests.tiny_checkpoint import run_main

PAGE = REPOSITORY / "docs" / "tutorial.md"


def test_the_tutorial_calls_commands_that_exist(tmp_path: Path) -> None:
    listed = run_main("--help", cwd=tmp_path).out
    blocks = blocks_of(PAGE)
    called = [name for block in blocks for name in block.commands]

    assert {"import-graph", "inspect", "monitor", "report"} == set(called)
    assert [] == [name for name in called if not re.search(rf"^\s*{name}\s", listed, re.MULTILINE)]
    assert ("Install", "bash") == (blocks[0].heading, blocks[0].language)


@pytest.mark.slow
def test_every_command_of_the_tutorial_works(tmp_path: Path) -> None:
    (tmp_path / "scripts").symlink_to(REPOSITORY / "scripts")
    blocks = [block for block in blocks_of(PAGE) if block.heading != "Install"]

    done = pasted(blocks, tmp_path)

    assert 0 == done.returncode, done.stderr
    folder = tmp_path / "tutorial"
    document = json.loads((folder / "result" / "metrics.json").read_text(encoding="utf-8"))
    assert ["valid.tsv"] == [path["path"] for path in document["edge_paths"]]
    assert len((folder / "valid.tsv").read_text(encoding="utf-8").splitlines()) == document["num_edges"]
    assert "filtered" == document["filter"]
    metrics = {name: document["metrics"][f"both.realistic.{name}"] for name in ("hits_at_10", "hits_at_50")}
    assert document["metrics"]["both.realistic.adjusted_mean_rank_index"] > 0.5  # 0 by chance
    hits_at_20 = re.search(r"^hits at 20: (\S+)$", done.stdout, re.MULTILINE)
    assert hits_at_20
    assert metrics["hits_at_10"] <= float(hits_at_20[1]) <= metrics["hits_at_50"]
    assert (folder / "graph" / "monitor" / "training_curves.png").is_file()
    assert "valid.tsv" in (folder / "report.html").read_text(encoding="utf-8")

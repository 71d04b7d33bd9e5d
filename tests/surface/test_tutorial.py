"""docs/tutorial.md: its commands, pasted one after the other into a shell, give what the page says."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.tiny_checkpoint import COMMAND, run_main

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs" / "tutorial.md"
_BLOCK = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^kgeval-dist ([a-z][a-z-]*)", re.MULTILINE)


def blocks_by_heading() -> list[tuple[str, str]]:
    """Return (heading, block) of every block of commands, in order."""
    sections = re.split(r"^## (.+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return [
        (heading, block)
        for heading, text in zip(sections[::2], sections[1::2], strict=True)
        for block in _BLOCK.findall(text)
    ]


def test_the_tutorial_calls_commands_that_exist(tmp_path: Path) -> None:
    listed = run_main("--help", cwd=tmp_path).out
    called = [name for _, block in blocks_by_heading() for name in _COMMAND.findall(block)]

    assert {"import-graph", "inspect", "monitor", "report"} == set(called)
    assert [] == [name for name in called if not re.search(rf"^\s*{name}\s", listed, re.MULTILINE)]
    assert "Install" == blocks_by_heading()[0][0]


@pytest.mark.slow
def test_every_command_of_the_tutorial_works(tmp_path: Path) -> None:
    (tmp_path / "scripts").symlink_to(REPOSITORY / "scripts")
    blocks = [block for heading, block in blocks_by_heading() if heading != "Install"]
    script = "set -euo pipefail\n" + "\n".join(blocks)
    environment = os.environ | {"PATH": f"{COMMAND.parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}

    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )

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

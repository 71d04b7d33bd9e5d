"""docs/tutorial.md: its commands, pasted one after the other into one shell, give what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.kit.commands import metrics_of
from tests.pasted_commands import REPOSITORY, following


@pytest.mark.slow
def test_every_command_of_the_tutorial_works(tmp_path: Path) -> None:
    (tmp_path / "scripts").symlink_to(REPOSITORY / "scripts")

    with following("docs/tutorial.md", tmp_path) as reader:
        printed = reader.paste_all_that_is_left()

    folder = tmp_path / "tutorial"
    document = metrics_of(folder / "result")
    assert ["valid.tsv"] == [path["path"] for path in document["edge_paths"]]
    assert len((folder / "valid.tsv").read_text(encoding="utf-8").splitlines()) == document["num_edges"]
    assert "filtered" == document["filter"]
    metrics = {name: document["metrics"][f"both.realistic.{name}"] for name in ("hits_at_10", "hits_at_50")}
    assert document["metrics"]["both.realistic.adjusted_mean_rank_index"] > 0.5  # 0 by chance
    hits_at_20 = re.search(r"^hits at 20: (\S+)$", printed, re.MULTILINE)
    assert hits_at_20
    assert metrics["hits_at_10"] <= float(hits_at_20[1]) <= metrics["hits_at_50"]
    assert (folder / "graph" / "monitor" / "report.html").is_file()
    assert "valid.tsv" in (folder / "report.html").read_text(encoding="utf-8")

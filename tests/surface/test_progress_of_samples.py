"""What a run says of itself while it evaluates a sample: edges drawn, not those of the windows that they lie in."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.kit.case import TinyCase
from tests.kit.commands import flags, metrics_of, run_command

LINE = re.compile(r"bucket \(\d, \d\): ([\d,]+) edges in .*; (\d+)% done")


@pytest.mark.parametrize("candidates", ["sampled", "partition"])
@pytest.mark.parametrize("sample", ["sample_edges=24", "target_error=0.05"])
def test_edges_and_shares_are_those_of_the_sample(tmp_path: Path, candidates: str, sample: str) -> None:
    case = TinyCase.write(tmp_path, partition_sizes=(9, 8), edges_per_bucket=40)
    settings = [f"candidates={candidates}", "num_batch_negs=5", "num_uniform_negs=5", sample]

    done = run_command(case, "--workers", "1", "--output", "out", *flags(settings))

    assert 0 == done.status, done.err
    lines = [(int(edges.replace(",", "")), int(share)) for edges, share in LINE.findall(done.err + done.out)]
    assert metrics_of(case.root / "out")["num_edges"] == sum(edges for edges, _ in lines)
    assert 100 == lines[-1][1]
    assert max(share for _, share in lines) <= 100

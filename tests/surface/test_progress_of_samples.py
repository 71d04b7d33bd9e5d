"""What a run says of itself while it evaluates a sample: edges drawn, not those of the windows that they lie in."""

from __future__ import annotations

import re
from pathlib import Path
from unittest import mock

import pytest

from pbgeval import Observer, evaluate
from tests.kit.case import TinyCase
from tests.kit.commands import Done, flags, metrics_of, run_command

LINE = re.compile(r"bucket \(\d, \d\): ([\d,]+) edges in [^;\n]*(?:; (\d+)% done)?")


def lines_of(done: Done) -> list[tuple[str, str]]:
    """Return the number of edges and the share that each line tells; "" where it tells none."""
    return LINE.findall(done.err + done.out)


@pytest.mark.one_case
@pytest.mark.parametrize("candidates", ["sampled", "partition"])
@pytest.mark.parametrize("sample", ["sample_edges=24", "target_error=0.05"])
def test_edges_and_shares_are_those_of_the_sample(tmp_path: Path, candidates: str, sample: str) -> None:
    case = TinyCase.write(tmp_path, partition_sizes=(9, 8), edges_per_bucket=40)
    settings = [f"candidates={candidates}", "num_batch_negs=5", "num_uniform_negs=5", sample]

    done = run_command(case, "--workers", "1", "--output", "out", *flags(settings))

    assert done.status == 0, done.err
    lines = [(int(edges.replace(",", "")), int(share)) for edges, share in lines_of(done)]
    assert (metrics_of(case.root / "out")["num_edges"], 100) == (sum(edges for edges, _ in lines), lines[-1][1])
    assert max(share for _, share in lines) <= 100


def test_shares_never_step_back_from_round_to_round(tmp_path: Path) -> None:
    case = TinyCase.write(tmp_path, partition_sizes=(9, 8), edges_per_bucket=2_500)

    settings = ["candidates=partition", "target_error=0.0001", "hits_at=1"]
    done = run_command(case, "--workers", "1", "--output", "out", *flags(settings))

    assert done.status == 0, done.err
    lines, document = lines_of(done), metrics_of(case.root / "out")
    assert document["sample"]["rounds"] > 1
    assert sum(int(edges.replace(",", "")) for edges, _ in lines) == document["num_edges"]
    shares = [int(share) for _, share in lines if share]
    assert "" in {share for _, share in lines[:4]}, "more rounds may follow the first"
    assert (shares, shares[-1]) == (sorted(shares), 100)


@pytest.mark.one_case
@pytest.mark.parametrize(("settings", "has_intervals"), [((), True), (("sample_edges=400",), False)])
def test_the_spread_of_buckets_is_no_interval_of_a_sample(
    tmp_path: Path, settings: tuple[str, ...], has_intervals: bool
) -> None:
    observer = mock.create_autospec(Observer)
    case = TinyCase.write(tmp_path, partition_sizes=(4, 3, 3), edges_per_bucket=90)
    overrides = ["candidates=partition", *settings]
    evaluate(case.config, overrides=overrides, workers=1, output=tmp_path / "out", observer=observer)

    units = [call.args[0] for call in observer.unit_finished.call_args_list]
    assert len(units) >= 6
    assert any(unit.half_width is not None for unit in units) is has_intervals

"""Workers that each watch their own buckets: one summary, the same bits as that of one worker, one verdict for all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from pbgeval import ModelSchema, ModelTensors, Monitor, MonitoredRelation
from pbgeval.cluster.team import Team
from pbgeval.monitor.records import file_of_worker, read_history
from pbgeval.notation import Bucket
from tests.kit.groups import join, start_workers
from tests.kit.training import make_graph, passes_of

NUM_PASSES = 4


def tables_after(epoch: int, bucket: Bucket, num_partitions: int) -> ModelTensors:
    """The model is a function of pass and bucket, as if another one had trained in between."""
    generator = torch.Generator().manual_seed(1000 * epoch + 10 * bucket.lhs + bucket.rhs)
    return ModelTensors({("e", at): torch.randn(48, 8, generator=generator) for at in range(num_partitions)})


def watch_all(output: Path, team: Team, *, moving: bool) -> list[bool]:
    """Watch this worker's buckets in each pass; `moving`: other ones each time."""
    graph = make_graph(5, 2, 48, 200)
    schema = ModelSchema([MonitoredRelation("links", "e", "e")], {"e": 2}, "dot")
    monitor = Monitor(schema, output, eval_fraction=0.3, eval_num_batch_negs=8, eval_num_uniform_negs=8, team=team)
    answers = []
    for epoch in range(NUM_PASSES):
        for at, (bucket, edges) in enumerate(graph.items()):
            if (at + epoch * moving) % team.size != team.rank_in_team:
                continue
            monitor.split(edges, bucket)
            model = tables_after(epoch, bucket, 2)
            with monitor.watch(epoch, bucket, model):
                for key, table in tables_after(epoch + 100, bucket, 2).tables.items():
                    model.tables[key].copy_(table)
        monitor.end_pass(epoch)
        answers.append(monitor.should_stop("mrr", patience=1))
    return answers


def _work(output: Path, moving: bool) -> None:
    torch.set_num_threads(1)
    team = Team.join()
    answers = json.dumps(watch_all(output, team, moving=moving))
    (output / f"answers.{team.rank_in_team}").write_text(answers, encoding="utf-8")
    team.leave()


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "moving"), [(2, False), (3, False), (2, True)])
def test_the_summary_of_several_workers_is_that_of_one_and_buckets_may_move(
    tmp_path: Path, workers: int, moving: bool
) -> None:
    one, many = tmp_path / "one", tmp_path / "many"
    many.mkdir()
    alone = watch_all(one, Team(), moving=False)
    join(start_workers(workers, 1, _work, many, moving))

    summaries = [passes_of(one), passes_of(many)]
    if moving:  # then no worker has followed the edges: a verdict may be another, and no fall is measured
        assert {of["pbgeval"]["fall"] for of in summaries[1]} == {None}
        unlike = {"verdict": None, "fall": None, "fall_clusters": 0}
        summaries = [[of | {"pbgeval": of["pbgeval"] | unlike} for of in passes] for passes in summaries]
    assert summaries[0] == summaries[1]
    answers = [json.loads((many / f"answers.{rank}").read_text(encoding="utf-8")) for rank in range(workers)]
    assert moving or answers == [alone] * workers
    assert all(file_of_worker(many, rank).exists() for rank in range(workers))
    assert len(read_history(many, pytest.fail).visits) == 4 * NUM_PASSES

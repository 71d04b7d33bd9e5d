"""Paths of a config that are URLs: the figures of local files, bounded copies that go, faults in one line."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from pbgeval import edge_scorer, evaluate_triples
from pbgeval import evaluation as driver
from pbgeval.cluster.team import Team
from pbgeval.config import load_config
from pbgeval.errors import OutputError, StorageError
from pbgeval.inputs import object_storage
from pbgeval.inputs.object_storage import local_copies
from pbgeval.results import sending
from pbgeval.storage import writing as files
from pbgeval.storage.objects import RemoteObject, list_objects, put_object
from tests.kit.case import TinyCase
from tests.kit.commands import (
    Done,
    evaluated,
    flags,
    lacking,
    metrics_of,
    numbers_of,
    run_command,
    run_main,
    run_of,
    start_command,
)
from tests.kit.faults import compare
from tests.kit.groups import run_group
from tests.kit.names import write_edges_by_name
from tests.object_store import ObjectStore, object_store

POLICIES = ["sampled", "partition", "all"]
EMBEDDINGS = "checkpoint/embeddings_user_1.v3.h5"
SCORER = edge_scorer(lambda lhs, rel, rhs: (lhs + rel - rhs).float(), num_entities=5, num_relations=1)


@frozen
class RemoteCase:
    """A case, and the same files below a prefix of a bucket."""

    case: TinyCase
    store: ObjectStore
    url: str  # of the prefix

    @property
    def key(self) -> str:
        return self.url.removeprefix("s3://")

    @property
    def scratch(self) -> Path:
        return self.case.root.parent / "scratch"

    def paths(self, root: str) -> list[str]:
        """The settings that name all that is read, below a root."""
        known = [f"filter_paths={root}/known", f"train_paths={root}/edges"]
        return [f"entity_path={root}/entity", f"checkpoint_path={root}/checkpoint", f"edge_paths={root}/edges", *known]

    def arguments(self, *overrides: str, output: str = "remote", workers: int = 1) -> list[str]:
        """The command's arguments of a run that reads objects."""
        given = [*self.paths(self.url), f"scratch_path={self.scratch}", *overrides]
        return ["--workers", str(workers), "--quiet", "--output", output, *flags(given)]

    def known_here(self) -> list[str]:
        """Settings by which known edges are files."""
        return [f"filter_paths={self.case.root}/known", f"train_paths={self.case.root}/known"]

    def run(self, *overrides: str, output: str = "remote", workers: int = 1) -> Done:
        return run_command(self.case, *self.arguments(*overrides, output=output, workers=workers))

    def succeeds(self, *overrides: str, output: str = "remote", workers: int = 1) -> dict[str, str]:
        """Run; return the numbers. Nothing is left of the copies."""
        assert (self.run(*overrides, output=output, workers=workers).printed, list(self.scratch.iterdir())) == ("", [])
        return numbers_of(self.case.root / output)

    def only_line(self, done: Done) -> str:
        """Return the only line of a run that was refused. Nothing is left."""
        self.left_nothing()
        assert f"{self.scratch}/" not in done.fault  # it names URLs, not copies
        return done.fault

    def left_nothing(self) -> None:
        assert [*self.scratch.iterdir(), *self.case.root.glob("remote")] == []

    def bytes_of_small_files(self) -> int:
        """Of all that is always copied."""
        root = self.case.root
        return sum(path.stat().st_size for path in (*root.glob("entity/*"), *root.glob("checkpoint/[mc]*")))

    def local_numbers(self, *overrides: str) -> dict[str, str]:
        """The numbers of the local files."""
        evaluated(self.case, *self.paths("."), *overrides, output="local")
        return numbers_of(self.case.root / "local")


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectStore]:
    with object_store() as store:
        yield store


@pytest.fixture
def remote(server: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RemoteCase:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")  # where nothing answers, it is not asked again for seconds
    case = TinyCase.write(tmp_path / "case", partition_sizes=(9, 8), edges_per_bucket=9, workers=None)
    shutil.copytree(case.root / "edges", case.root / "known")
    for path in sorted((case.root / "known").iterdir())[::2]:
        path.unlink()
    bucket = "of-" + re.sub("[^a-z0-9]+", "-", f"{tmp_path.parent.name}-{tmp_path.name}".lower())[-40:].strip("-")
    server.make_bucket(bucket)
    made = RemoteCase(case, server, f"s3://{bucket}/deep/case")
    server.upload(case.root, made.key)
    made.scratch.mkdir()
    return made


# Results


@pytest.mark.one_case
@pytest.mark.parametrize("candidates", POLICIES)
def test_objects_have_the_numbers_of_the_same_files(remote: RemoteCase, candidates: str) -> None:
    settings = [f"candidates={candidates}", "save_ranks=True"]

    assert remote.local_numbers(*settings) == remote.succeeds(*settings)

    assert [f"{remote.url}/edges"] == run_of(remote.case.root / "remote")["edge_paths"]


# Results as objects


def sent(case: TinyCase, url: str, *arguments: str) -> Done:
    return run_command(case, "--workers", "1", "--output", url, *arguments)


@pytest.mark.parametrize("scheme", ["s3", "file"])
def test_a_result_is_copied_to_a_url(remote: RemoteCase, tmp_path: Path, scheme: str) -> None:
    url, get = {
        "s3": (f"{remote.url}/result", lambda name: remote.store.get(f"{remote.key}/result/{name}")),
        "file": (f"file://{tmp_path}/far/result", lambda name: (tmp_path / "far/result" / name).read_bytes()),
    }[scheme]

    assert sent(remote.case, url, "--quiet", *flags(["save_ranks=True"])).printed == ""

    [folder] = (remote.case.root / "results").iterdir()
    here = {name: (folder / name).read_bytes() for name in (folder / "files.txt").read_text().split()}
    assert {"metrics.json", "run.json", "ranks/0/ranks_1_1.h5"} <= here.keys()
    assert here == {name: get(name) for name in here}


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3://no-such-bucket-at-all/result", "the result is in results/"),
        ("nonsense://bucket/result", "nonsense"),
        ("s3://", "output: expected a bucket or folder after ://, got s3://"),
        ("://zz", "output: expected a URL such as s3://bucket/folder, or a local path without ://, got ://zz"),
        ("memory://a/b", "output: memory://a/b is gone when this process ends; choose s3://"),
    ],
)
def test_a_url_that_cannot_be_written_is_one_line(remote: RemoteCase, url: str, message: str) -> None:
    assert message in sent(remote.case, url, "--quiet").fault


SECRET = "s3://user:SECRETPW@bucket/x"


@pytest.mark.parametrize("command", ["run", "report"])
@pytest.mark.parametrize(
    ("url", "message"),
    [
        (f"{SECRET}?X-Amz-Signature=SIG", "output: expected a URL without ? and #, got s3://bucket/x and more"),
        ("memory://x/y#SECRETPW", "output: expected a URL without ? and #, got memory://x/y and more"),
        (SECRET, "s3://bucket/x"),
    ],
)
def test_what_a_url_hides_is_not_shown(tmp_path: Path, command: str, url: str, message: str) -> None:
    case = TinyCase.write(tmp_path / "case", partition_sizes=(9, 8))
    given = [str(case.config), "--workers", "1"]
    if command == "report":
        evaluated(case, output="here")
        given = ["here", "--format", "md"]

    fault = run_main(command, *given, "--output", url, cwd=case.root).fault
    assert [message] == [words for words in (message, "SECRETPW", "SIG") if words in fault]


@pytest.fixture
def far(tmp_path: Path) -> tuple[TinyCase, Path, str]:
    """A case, and a folder that is also the place of a URL."""
    return TinyCase.write(tmp_path / "case", partition_sizes=(9, 8)), tmp_path / "far", f"file://{tmp_path}/far"


def without_room(content: Path | bytes, url: str) -> None:
    """Fail to write all but metrics.json."""
    if not url.endswith("/metrics.json"):
        raise StorageError(f"{url.rpartition('/')[0]}/run.json: no room")
    put_object(content, url)


def test_a_result_in_place_of_another_leaves_nothing_of_it(far: tuple[TinyCase, Path, str]) -> None:
    case, folder, url = far
    done = sent(case, url, *flags(["save_ranks=True", "breakdowns=relation"]))
    (folder / "notes.txt").write_text("mine")
    printed = sent(case, url, "--overwrite", "--quiet", *flags(["save_ranks=False", "breakdowns=entity_types"])).printed

    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert {*(folder / "files.txt").read_text().split(), "notes.txt"} == names - {"relations.csv"} == names
    assert (done.status, done.out.endswith(f"copied to {url}\n"), printed) == (0, True, "")


def test_a_copy_that_fails_leaves_no_complete_result(
    far: tuple[TinyCase, Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    case, folder, url = far
    other = flags(["hits_at=7"])
    assert sent(case, url).status == 0
    with monkeypatch.context() as patch:
        patch.setattr(sending, "put_object", without_room)
        done = sent(case, url, "--quiet", "--overwrite", *other)

    assert done.fault.startswith(f"{url}/run.json: no room; the result is in results/")
    assert not metrics_of(folder)["complete"]
    assert sent(case, url, *other).status == 0  # goes on
    assert metrics_of(folder)["complete"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("run.json", "mine", "found run.json, which a run writes, and no result; move them away"),
        ("metrics.json", "{}", "expected a result of pbgeval, got something else; move it away"),
        ("metrics.json", '{"provenance": {"digest": "1"}}', "found another result; choose another output"),
    ],
)
def test_what_others_have_at_a_url_is_refused_before_the_evaluation(
    far: tuple[TinyCase, Path, str], name: str, text: str, message: str
) -> None:
    case, folder, url = far
    folder.mkdir()
    (folder / name).write_text(text)

    assert not lacking(sent(case, url).fault, url, message)
    assert (text, False) == ((folder / name).read_text(), (case.root / "results").exists())


def test_a_result_in_memory_that_cannot_be_sent_names_no_folder(
    far: tuple[TinyCase, Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "put_object", without_room)

    with pytest.raises(OutputError, match=r"run.json: no room; evaluate again, with a folder as output$"):
        evaluate_triples(SCORER, [[0, 0, 1], [2, 0, 3]], output=far[2])


def test_a_model_in_memory_sends_its_result(remote: RemoteCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(remote.case.root)

    report = evaluate_triples(SCORER, [[0, 0, 1], [2, 0, 3]], output=f"{remote.url}/memory")

    assert (report.path, (remote.case.root / "results").exists()) == (None, False)
    assert report.to_json().encode() == remote.store.get(f"{remote.key}/memory/metrics.json")


def test_a_report_is_written_to_a_url(remote: RemoteCase) -> None:
    evaluated(remote.case, output="here")

    for form, output, name in (("html", "mine.html", "mine.html"), ("md", "pages", "pages/report.md")):
        done = run_main("report", "here", "--format", form, "--output", f"{remote.url}/{output}", cwd=remote.case.root)
        assert f"{remote.url}/{name}\n" == done.printed
        assert b"mean reciprocal rank" in remote.store.get(f"{remote.key}/{name}")


# Mixtures and groups


@pytest.mark.slow
def test_a_group_reads_objects_and_worker_0_makes_the_buckets(remote: RemoteCase) -> None:
    write_edges_by_name(remote.case)
    remote.store.upload(remote.case.root, remote.key)
    alone = remote.local_numbers("edge_paths=edges.tsv")
    overrides = [*remote.paths(remote.url), f"edge_paths={remote.url}/edges.tsv", f"scratch_path={remote.scratch}"]

    run_group(remote.case, overrides, remote.case.root / "remote", workers=2, threads=1)

    assert (alone, []) == (numbers_of(remote.case.root / "remote"), list(remote.scratch.iterdir()))
    assert run_of(remote.case.root / "remote")["num_workers"] == 2
    assert len(list((remote.case.root / "remote" / "imported").iterdir())) == 1


class OfOneGroup(Team):
    """A worker of a group on this host, which does not wait for the others."""

    def broadcast_object(self, value: Any) -> Any:
        return "0123456789abcdef"


def test_workers_of_a_group_on_one_host_copy_each_object_once(
    remote: RemoteCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[str] = []
    copy_object = object_storage.copy_object
    monkeypatch.setattr(object_storage, "copy_object", lambda of, path: copied.append(of.url) or copy_object(of, path))
    config = load_config(remote.case.config, [*remote.paths(remote.url), f"scratch_path={remote.scratch}"])

    with local_copies(config, OfOneGroup()) as first, local_copies(config, OfOneGroup()) as second:
        names = {path.name for path in Path(first.edge_paths[0]).glob("*.h5")}
        assert first == second

    assert names == {path.name for path in (remote.case.root / "edges").iterdir()}
    assert sorted({*copied, f"{remote.url}/{EMBEDDINGS}"}) == sorted(copied)
    assert list(remote.scratch.iterdir()) == []


# Bounds


def before_the_evaluation(patch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let something happen when the objects have been copied."""
    evaluate = driver._evaluate
    patch.setattr(driver, "_evaluate", lambda *arguments: (act(), evaluate(*arguments))[1])


@pytest.mark.parametrize(("candidates", "workers"), [("all", 1), pytest.param("partition", 2, marks=pytest.mark.slow)])
def test_what_exceeds_the_limit_is_read_in_place(
    remote: RemoteCase, candidates: str, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And copies are their user's own."""
    sizes = {path.name: path.stat().st_size for path in remote.case.root.glob("checkpoint/embeddings_*")}
    edges = [path.stat().st_size for name in ("edges", "known") for path in (remote.case.root / name).iterdir()]
    # One partition or more, but not all.
    limit = remote.bytes_of_small_files() + sum(edges) + max(sizes.values())
    found: list[Path] = []

    def look() -> None:
        found.extend(path for path in remote.scratch.rglob("*") if path.is_file() and not path.name.startswith("."))
        assert sum(path.stat().st_size for path in found) <= limit
        assert {stat.S_IMODE(path.stat().st_mode) for path in found} <= {0o600}

    before_the_evaluation(monkeypatch, look)
    settings = [f"candidates={candidates}", "save_ranks=True"]

    assert remote.local_numbers(*settings) == remote.succeeds(*settings, f"scratch_limit={limit}", workers=workers)

    copied = [path.name.partition("_")[0] for path in found]
    assert len(edges) == copied.count("edges")
    assert 0 < copied.count("embeddings") < len(sizes)


def test_a_disk_that_is_full_is_one_line(remote: RemoteCase, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(files.System):
        def write(self, descriptor: int, data: memoryview) -> int:
            if len(data) > 1000 and os.readlink(f"/proc/self/fd/{descriptor}").endswith(".h5"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(descriptor, data)

    monkeypatch.setattr(files, "system", Full())

    fault = remote.only_line(remote.run())

    assert fault.startswith(f"{remote.scratch}: cannot write a copy of {remote.url}/checkpoint/model.v3.h5 (")
    assert fault.endswith("bytes): No space left on device; choose another scratch_path or set scratch_limit")


def test_a_signal_to_end_while_objects_are_copied_leaves_nothing(
    remote: RemoteCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(of: RemoteObject, path: Path) -> None:
        path.touch()
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(object_storage, "copy_object", ended)

    done = remote.run()

    assert (done.status, done.out, done.err.count("ended by SIGTERM"), [*remote.scratch.iterdir()]) == (75, "", 1, [])


# Faults


def without_a_partition(remote: RemoteCase) -> list[str]:
    remote.store.remove(f"{remote.key}/{EMBEDDINGS}")
    return []


def with_a_wrong_id(remote: RemoteCase) -> list[str]:
    remote.case.spoil_edges(1, 0, "lhs", 4, 1 << 40)
    remote.store.upload(remote.case.root, remote.key)
    return remote.known_here()


NOT_THERE = "no object or prefix of that name: …; check bucket and key"
FAULTS: list[tuple[Callable[[RemoteCase], list[str]], list[str]]] = [
    (without_a_partition, [f"{{url}}/{EMBEDDINGS}: no such file; …"]),
    (with_a_wrong_id, ["{url}/edges/edges_1_0.h5: dataset lhs, row 4: expected an id in 0..…"]),
    (
        lambda _: ["scratch_limit=100"],
        [
            "{url}/checkpoint/model.v3.h5: no room for a copy of its … bytes (… are left for copies); raise "
            "scratch_limit, or choose a scratch_path with more room"
        ],
    ),
    (
        lambda remote: [f"edge_paths={remote.url}/nothing", "checkpoint_path=s3://no-such-bucket/checkpoint"],
        [f"s3://no-such-bucket/checkpoint: {NOT_THERE}", f"{{url}}/nothing: {NOT_THERE}"],
    ),
    (
        lambda remote: [f"candidate_path={remote.url}/candidates"],
        ["-p candidate_path={url}/candidates: must be a local directory, …"],
    ),
]


@pytest.mark.one_case
@pytest.mark.parametrize(("act", "lines"), FAULTS, ids=[lines[0][:40] for _, lines in FAULTS])
def test_a_fault_names_the_url_and_leaves_nothing(
    remote: RemoteCase, act: Callable[[RemoteCase], list[str]], lines: list[str]
) -> None:
    compare(remote.run(*act(remote)), [line.replace("{url}", remote.url) for line in lines], remote.case.root)
    remote.left_nothing()


@pytest.mark.slow
def test_without_credentials_nothing_is_read(remote: RemoteCase) -> None:
    files = [f"entity_path={remote.case.root}/entity", f"edge_paths={remote.case.root}/edges"]
    environment = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}
    done = start_command(remote.case, *remote.arguments(*files, *remote.known_here()), environment=environment)

    compare(done, ["…needs credentials: …"], remote.case.root)


@pytest.mark.slow
def test_an_environment_that_was_mended_is_used_by_the_same_process(
    remote: RemoteCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{remote.url}/checkpoint"
    expected = list_objects(url)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    line = r"the endpoint does not answer: .*127\.0\.0\.1:9/.*; check the network, for s3:// also AWS_ENDPOINT_URL"
    with pytest.raises(StorageError, match=line):
        list_objects(url)

    monkeypatch.setenv("AWS_ENDPOINT_URL", remote.store.endpoint)

    assert list_objects(url) == expected


def test_an_object_that_changes_while_it_is_copied_is_refused(
    remote: RemoteCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, copied = (remote.case.root / EMBEDDINGS).read_bytes(), object_storage.copy_object

    def after_a_change(of: RemoteObject, path: Path) -> None:
        remote.store.put(f"{remote.key}/{EMBEDDINGS}", content[: len(content) // 2])
        copied(of, path)

    monkeypatch.setattr(object_storage, "copy_object", after_a_change)

    assert remote.only_line(remote.run()).startswith(f"{remote.url}/{EMBEDDINGS}: expected ")


@pytest.mark.slow
def test_an_object_that_changes_while_it_is_read_in_place_is_refused(
    remote: RemoteCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = (remote.case.root / EMBEDDINGS).read_bytes()
    changed = content[:-1] + bytes([content[-1] ^ 1])
    before_the_evaluation(monkeypatch, lambda: remote.store.put(f"{remote.key}/{EMBEDDINGS}", changed))

    fault = remote.only_line(remote.run(f"scratch_limit={remote.bytes_of_small_files()}"))

    expected = f"{remote.url}/{EMBEDDINGS}: expected the object of the start ({len(content)} bytes, version "
    assert (fault.startswith(expected), fault.endswith("; it changed during the run: start it again")) == (True, True)


def test_local_paths_need_no_scratch_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_storage, "private_folder", None)  # a call of it is a fault

    assert evaluated(TinyCase.write(tmp_path, partition_sizes=(9, 8)))["complete"]

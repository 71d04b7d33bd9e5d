"""The command as users meet it: help, version, what it prints where, and input that is odd but right."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pty
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any
from unittest import mock

import h5py
import numpy as np
import pytest
import typer.main

from pbgeval.cli import app
from pbgeval.inputs import protocol
from pbgeval.metrics.given import Absent
from pbgeval.metrics.names import SIDES
from pbgeval.metrics.ndcg import Discount
from pbgeval.metrics.taxonomy import TypeGain
from pbgeval.models.topk import TopKFilter, TopKTies
from pbgeval.report.paired_runs import CLUSTERS
from pbgeval.stats.rank_types import RANK_TYPE_SYNONYMS
from pbgeval.version import __version__
from tests.kit import pbg_files
from tests.kit.case import VERSION, TinyCase
from tests.kit.commands import (
    COMMAND,
    flags,
    metrics_of,
    numbers_of,
    run_command,
    run_main,
    start,
)

Change = Callable[[TinyCase], None]


def succeeds(case: TinyCase, *arguments: str) -> dict[str, Any]:
    """Run on one worker; return what metrics.json holds."""
    assert run_command(case, "--workers", "1", "--quiet", "--output", "output", *arguments).printed == ""
    return metrics_of(case.root / "output")


def test_a_run_says_why_ranks_were_not_saved(case: TinyCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MAX_SAMPLED_BUCKETS_SAVED", 3)
    run = ("--workers", "1", "--output")

    unasked = run_command(case, *run, "unasked", "-p", "candidates=sampled").out
    saved = run_command(case, *run, "saved", "-p", "candidates=sampled", "-p", "save_ranks=True").out

    told = "ranks were not saved (4 buckets; -p save_ranks=True saves them for compare and verify)"
    assert unasked.splitlines()[-1] == told
    assert told not in saved


# Help


@pytest.mark.parametrize("command", [[COMMAND], [sys.executable, "-m", "pbgeval"]], ids=["kgeval-dist", "python -m"])
def test_the_version(command: list[str | Path]) -> None:
    assert f"kgeval-dist {__version__}\n" == start([*command, "--version"], Path()).printed


@pytest.mark.parametrize(
    ("command", "flag", "choices"),
    [
        ("topk", "filter", [choice.value for choice in TopKFilter]),
        ("topk", "ties", [choice.value for choice in TopKTies]),
        ("topk", "absent", [choice.value for choice in Absent]),
        ("topk", "rank-type", RANK_TYPE_SYNONYMS),
        ("types", "gain", [choice.value for choice in TypeGain]),
        ("types", "discount", [choice.value for choice in Discount]),
        ("compare", "side", SIDES),
        ("compare", "rank-type", RANK_TYPE_SYNONYMS),
        ("compare", "clusters", CLUSTERS),
        ("compare", "format", ["html", "svg", "text", "json", "csv", "md", "latex"]),
    ],
)
def test_help_lists_the_choices_that_the_program_takes(
    command: str, flag: str, choices: Collection[str], tmp_path: Path
) -> None:
    (shown,) = re.findall(rf"--{flag} <(.*?)>", run_main(command, "--help", cwd=tmp_path).out)

    assert sorted(choices) == sorted(shown.split("|"))


COMMANDS = ("", *typer.main.get_command(app).commands)  # type: ignore[attr-defined]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_80_columns_and_ends_with_three_commands_that_can_be_typed(command: str, tmp_path: Path) -> None:
    lines = run_main(*command.split(), "--help", cwd=tmp_path).printed.splitlines()
    program = typer.main.get_command(app)

    assert [line for line in lines if len(line) > 80 or (line.endswith("...") and "Usage" not in line)] == []
    assert lines[-4] == "Examples:"
    for line in lines[-3:]:
        typed, name, *words = shlex.split(line.partition(" > ")[0], comments=True)
        of_command = program.commands[name]  # type: ignore[attr-defined]
        assert (typed, name) == ("kgeval-dist", command or name)
        assert of_command.make_parser(typer.Context(of_command)).parse_args(args=words)[1] == [], line


def test_the_bare_command_prints_its_help(tmp_path: Path) -> None:
    assert run_main(cwd=tmp_path) == run_main("--help", cwd=tmp_path)


def test_run_does_what_the_option_config_does(case: TinyCase) -> None:
    for form, name in ((("--config", "eval.py"), "option"), (("run", "eval.py"), "argument")):
        assert run_main(*form, "--workers", "1", "--quiet", "--output", name, cwd=case.root).printed == ""
    assert numbers_of(case.root / "option") == numbers_of(case.root / "argument")


@pytest.mark.parametrize("option", ["--config", "--output"])
def test_an_option_that_is_given_twice_is_refused(option: str, tmp_path: Path) -> None:
    fault = run_main("--config", "a", option, "b", option, "c", cwd=tmp_path).fault
    assert fault == f"{option} is given {3 if option == '--config' else 2} times; give it once"


@pytest.mark.parametrize(
    ("word", "keys"),
    [
        ("hits-at", {"hits_at", "target_metric", "topk_metrics"}),
        ("plus or minus", {"target_error"}),
        ("entities.NAME", {"entities.NAME.num_partitions", "entities.NAME.featurized", "entities.NAME.dimension"}),
    ],
)
def test_help_of_the_config_can_be_searched(word: str, keys: set[str], tmp_path: Path) -> None:
    printed = run_main("--help-config", *word.split(), cwd=tmp_path).printed
    assert set(re.findall(r"^  ([\w.]+): ", printed, re.MULTILINE)) == keys


def test_completion_knows_options() -> None:
    typed = "kgeval-dist run --wor"
    variables = {"_KGEVAL_DIST_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": "2"}
    assert start([COMMAND], Path(), **variables).out.strip() == "--workers"


# What is printed


def test_the_table_shows_the_headline_metrics_of_each_side(case: TinyCase) -> None:
    done = run_command(case, "--workers", "1", "--output", "output", "-p", "compute_loss=True")

    document = metrics_of(case.root / "output")
    metrics, errors = document["metrics"], document["standard_errors"]
    rows = {
        cells[0]: cells[1:]
        for cells in ([cell.strip() for cell in line.strip("│┃").split("│")] for line in done.out.splitlines())
        if len(cells) == 4
    }
    for label, key in {
        "mean reciprocal rank": "realistic.mean_reciprocal_rank",
        "hits@1": "realistic.hits_at_1",
        "hits@10": "realistic.hits_at_10",
        "AUC per query": "query_auc",
        "mean rank": "realistic.mean_rank",
    }.items():
        for side, cell in zip(("both", "head", "tail"), rows[label], strict=True):
            num_decimals = len(cell.partition(" ")[0].partition(".")[2])
            figures = [of[f"{side}.{key}"] for of in (metrics, errors) if f"{side}.{key}" in of]
            assert cell == " ± ".join(f"{figure:.{num_decimals}f}" for figure in figures)
    assert [f"{metrics['both.loss']:,.2f}", "–", "–"] == rows["loss"]
    assert "50 edges, unfiltered, 6 to 10 candidates per query" in done.out
    assert done.out.endswith(
        "output: summary.json, metrics.json, run.json, buckets.csv, rank_histogram.csv, relations.csv, metrics.jsonl, "
        "ranks\n"
        "make a page with: kgeval-dist report output\n"
    )


def test_the_table_has_no_column_of_a_disabled_side(case: TinyCase) -> None:
    done = run_command(case, "--workers", "1", "--output", "output", "-p", "disable_lhs_negs=True")

    assert "tail" in done.out
    assert "head" not in done.out


def test_progress_is_a_line_per_bucket_off_a_terminal(case: TinyCase) -> None:
    done = run_command(case, "--workers", "1", "--output", "output")

    pattern = re.compile(
        r"edges bucket \((\d), (\d)\): (\d+) edges in [\d.]+ s, [\d,]+ edges/s, MRR 0\.\d{4}; (\d+)% done"
    )
    found = [pattern.fullmatch(line) for line in done.faults]
    assert all(found)
    lines = [match.groups() for match in found if match]
    assert {line[:3] for line in lines} == {("0", "0", "11"), ("0", "1", "12"), ("1", "0", "13"), ("1", "1", "14")}
    shares = [int(line[3]) for line in lines]
    assert (sorted(shares), 100) == (shares, shares[-1])


def test_keys_that_only_training_uses_are_named_once(case: TinyCase) -> None:
    case.write_config(lr=0.1, num_epochs=5)

    (line,) = warnings_of(case)
    assert re.fullmatch("eval.py: keys without effect on this evaluation: (.*, )?(lr, num_epochs|num_epochs, lr)", line)


def trained_with(case: TinyCase, **settings: Any) -> Path:
    """Write what PBG keeps beside a checkpoint: its config with other settings than the case's."""
    path = case.root / "checkpoint" / "config.json"
    path.write_text(json.dumps({**case.settings, "edge_paths": ["elsewhere"], **settings}), encoding="utf-8")
    return path


def warnings_of(case: TinyCase, *overrides: str) -> list[str]:
    return run_command(case, "--workers", "1", "--output", f"output{len(overrides)}", *flags(overrides)).warnings


def test_edges_of_the_training_are_warned_of(case: TinyCase) -> None:
    path = trained_with(case, edge_paths=["edges", "more"])

    first, last = warnings_of(case)

    assert (
        first == f"{path}: the checkpoint was trained on {case.root / 'edges'}; to evaluate other edges, set edge_paths"
    )
    document = metrics_of(case.root / "output0")
    assert document["edge_paths"][0]["trained_on"] is True
    num_edges = document["num_edges"]
    assert last == (
        f"{num_edges:,} of {num_edges:,} evaluated edges are those that the checkpoint was trained on (edges), so the "
        "figures are of training; set edge_paths to test edges"
    )
    said = json.loads((case.root / "output0" / "summary.json").read_text(encoding="utf-8"))["sentence"]
    assert f"the checkpoint was trained on {num_edges:,} of these edges" in said


def test_all_settings_that_differ_from_training_are_one_line(case: TinyCase) -> None:
    relations = [{**relation, "operator": "affine", "lhs": "other"} for relation in case.settings["relations"]]
    entities = {name: {**of, "dimension": 7} for name, of in case.settings["entities"].items()}
    path = trained_with(
        case, max_norm=0.5, bias=1, comparator="l1", relations=relations, entities=entities, lr=0.3, batch_size=7
    )
    own, more = case.settings["relations"][0], f"{len(relations)} of {len(relations)} relations differ"
    differences = [
        f"comparator = {case.settings['comparator']!r} (trained with 'l1')",
        "bias = False (trained with 1)",
        "max_norm = None (trained with 0.5)",
        *(f"entities[{name!r}].dimension = {case.settings['dimension']} (trained with 7)" for name in sorted(entities)),
        f"relations[0].operator = {own['operator']!r} (trained with 'affine'; {more})",
        f"relations[0].lhs = {own['lhs']!r} (trained with 'other'; {more})",
    ]
    assert warnings_of(case) == [
        f"{path}: the checkpoint was trained with other settings: {', '.join(differences)}; check the config"
    ]


def test_a_checkpoint_of_another_config_is_a_heading_and_a_line_per_kind(case: TinyCase) -> None:
    folder = trained_with(case, comparator="l2").parent
    (folder / f"embeddings_user_0.v{VERSION}.h5").unlink()
    (folder / f"embeddings_user_1.v{VERSION}.h5").unlink()

    done = run_command(case, "--workers", "1")

    heading, settings, *lines = done.faults
    assert done.status == 1
    assert heading == f"{folder}: config and checkpoint disagree; is this the checkpoint that the config describes?"
    assert settings.startswith("  config.json: the checkpoint was trained with other settings: comparator = ")
    (line,) = lines
    assert line.startswith(f"  embeddings_user_0.v{VERSION}.h5: no such file; the checkpoint has ")
    assert line.endswith(" (and 1 more like this)")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"relations": 3, "entities": [], "dimension": "x"}', "\0"])
def test_a_damaged_config_of_training_breaks_no_run(case: TinyCase, text: str) -> None:
    trained_with(case).write_text(text)

    lines = warnings_of(case)

    assert len(lines) <= 2
    assert all("config.json: " in line and len(line) < 400 for line in lines)


def test_only_what_differs_from_training_is_a_warning(case: TinyCase) -> None:
    num_relations = len(case.settings["relations"])
    trained_with(case)
    assert warnings_of(case) == []
    trained_with(case, relations=case.settings["relations"] * 2)
    (line,) = warnings_of(case, "seed=1")
    assert f"number of relations = {num_relations} (trained with {2 * num_relations})" in line


def on_terminal(case: TinyCase, *arguments: str) -> tuple[int, str]:
    """Run the command with its error stream on a terminal; return status and what was written there."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [COMMAND, "--config", case.config, "--output", "output", "--workers", "1", *arguments],
        cwd=case.root,
        stdout=subprocess.DEVNULL,
        stderr=slave,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "120"},
    )
    os.close(slave)
    text = b""
    with open(master, "rb", buffering=0) as terminal, contextlib.suppress(OSError):  # when the other end is closed
        while part := terminal.read(1 << 16):
            text += part
    return process.wait(), text.decode()


HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"


@pytest.mark.slow
def test_progress_is_a_bar_on_a_terminal(case: TinyCase) -> None:
    status, text = on_terminal(case)

    assert status == 0
    assert re.search(r"50/50 [\d,]+ edges/s MRR 0\.\d{4}", text)
    assert text.find("starting") < text.find("preparing") < text.find("scoring") < text.find("50/50")
    assert [words for words in ("remaining", " bucket (") if words in text] == ["remaining"]
    assert text.rfind(HIDE_CURSOR) < text.rfind(SHOW_CURSOR)


@pytest.mark.slow
def test_a_fault_leaves_the_terminal_as_it_was(case: TinyCase) -> None:
    case.spoil_edges(1, 1, "rel", 0, 77)

    status, text = on_terminal(case)

    assert (status, text.count("expected an id in 0..3")) == (1, 1)
    assert -1 < text.rfind(HIDE_CURSOR) < text.rfind(SHOW_CURSOR)


# Odd but right


def renamed(new: str) -> Change:
    """Give the entity type `user` another name, in files and config."""

    def act(case: TinyCase) -> None:
        for path in [*(case.root / "entity").iterdir(), *(case.root / "checkpoint").iterdir()]:
            path.rename(path.with_name(path.name.replace("_user_", f"_{new}_")))
        with h5py.File(case.model, "r+") as file:
            group = file["model/entities"]
            group.move("user", new)
            group[new]["global_embedding"].attrs["state_dict_key"] = f"global_embs.emb_{new}"
        settings = json.loads(json.dumps(case.settings))
        settings["entities"][new] = settings["entities"].pop("user")
        for relation in settings["relations"]:
            relation |= {side: new for side in ("lhs", "rhs") if relation[side] == "user"}
        case.write_config(**settings)

    return act


def without_counts(case: TinyCase) -> None:
    for path in (case.root / "entity").iterdir():
        path.unlink()


def linked(case: TinyCase) -> None:
    """Let the checkpoint and a file in it be links."""
    real = case.root.parent / "real"
    (case.root / "checkpoint").rename(real)
    (case.root / "checkpoint").symlink_to(real)
    (real / "embeddings_user_0.v3.h5").rename(case.root.parent / "blob")
    (real / "embeddings_user_0.v3.h5").symlink_to(case.root.parent / "blob")


NAMES = ("Ünïcödé_実体", "a type with spaces", "user.v3")
# Layouts and types of numbers: tests/unit/test_storage_edges.py and test_storage_checkpoint.py.
UNCHANGED = [
    *(pytest.param(of, id=of.__name__) for of in (without_counts, linked)),
    *(pytest.param(renamed(name), id=name) for name in NAMES),
]


@pytest.mark.one_case
@pytest.mark.parametrize("change", UNCHANGED)
def test_what_means_the_same_has_the_same_figures(case: TinyCase, change: Change) -> None:
    before = succeeds(case)["metrics"]
    change(case)
    assert before == succeeds(case, "--overwrite")["metrics"]


@pytest.mark.parametrize("is_empty_partition", [False, True])
def test_buckets_may_be_empty_or_absent(case: TinyCase, is_empty_partition: bool) -> None:
    pbg_files.write_edges(case.root / "edges", (0, 1), [], [], [])
    case.edges(1, 1).unlink()
    if is_empty_partition:  # which no edge needs
        case.edges(1, 0).unlink()
        pbg_files.write_entity_counts(case.root / "entity", {"user": [9, 0]})
        pbg_files.write_embeddings(case.root / "checkpoint", "user", 1, np.empty((0, 8)), version=3)

    assert 11 + 13 * (not is_empty_partition) == succeeds(case)["num_edges"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("streams", "status", "faults"),
    [
        ("| true", 0, []),
        ("2>/dev/full", 0, []),
        (">/dev/full", 1, ["cannot print the table: No space left on device; the result is in output"]),
    ],
)
def test_a_result_is_complete_even_if_its_output_cannot_be_written(
    case: TinyCase, streams: str, status: int, faults: list[str]
) -> None:
    command = f"'{COMMAND}' --config eval.py --workers 1 --output output {streams}; exit ${{PIPESTATUS[0]}}"
    done = start(["bash", "-c", command], case.root)

    assert (status, faults) == (done.status, [line for line in done.faults if " bucket (" not in line])
    assert metrics_of(case.root / "output")["complete"]


def test_buckets_without_a_file_are_counted_in_a_warning(case: TinyCase) -> None:
    case.edges(0, 1).unlink()

    assert [f"{case.root / 'edges'}: 1 of 4 buckets have no file and count as empty"] == warnings_of(case)


OUT_OF_FILES = OSError(errno.EMFILE, os.strerror(errno.EMFILE), "/a/file")


def test_too_many_open_files_are_one_line(case: TinyCase) -> None:
    with mock.patch("pbgeval.evaluation.run_evaluation", side_effect=OUT_OF_FILES):
        done = run_command(case, "--workers", "1", "--quiet")

    line = "Too many open files: raise the limit (ulimit -n), and run the same command again\n"
    assert (75, line) == (done.status, done.err)


def test_workers_for_whom_there_are_too_few_open_files_are_one_line(case: TinyCase) -> None:
    with mock.patch("pbgeval.cluster.launch._run_spawned", side_effect=OUT_OF_FILES):
        fault = run_command(case, "--workers", "2", "--quiet").fault

    assert fault.startswith("cannot start 2 workers: Too many open files; raise the limit")


@pytest.mark.slow
def test_a_limit_of_open_files_that_workers_cannot_run_with_is_one_line(case: TinyCase) -> None:
    shell = 'ulimit -n 24; exec "$@"'
    command = ["bash", "-c", shell, "bash", COMMAND, "--config", case.config, "--workers", "2", "--quiet"]
    line = "Too many open files: 2 workers need up to 56, and the limit is 24; raise it (ulimit -n 56), or use"
    assert f"{line} --workers 1 (in Python: workers=1)" == start(command, case.root).fault


@pytest.mark.parametrize(
    "arguments",
    [
        ("import-graph", "--edges", "test={url}", "--output", "out"),
        ("import-model", "{url}", "--output", "out"),
        ("run", "{url}"),
    ],
)
def test_no_message_shows_a_secret_of_a_url(arguments: tuple[str, ...], tmp_path: Path) -> None:
    for url in ("zip://x::s3://key:SECRET@bucket/a.zip", "https://host/a?X-Amz-Signature=SECRET"):
        done = run_main(*(of.replace("{url}", url) for of in arguments), cwd=tmp_path)

        assert (done.status, "SECRET" in done.out + done.err, "host" in done.err or "bucket" in done.err) == (
            1,
            False,
            True,
        )

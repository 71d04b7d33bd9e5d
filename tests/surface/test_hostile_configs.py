"""Configs that are wrong in ways that nobody means: one plain line, at once, and nothing but text on the terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pbgeval.storage.text import printable
from tests.tiny_checkpoint import TinyCase, run_main

BEGIN = """\
class E(BaseException): pass
def throw(): raise E('gone')
class U(Exception):
    def __str__(self): raise RuntimeError('no text')
"""

# What a Python file does, and what the only line says.
PYTHON = {
    "a list that contains itself": ("l = []; l.append(l); c['relations'] = l", "relations[0]: expected a dict with"),
    "paths that contain themselves": ("l = []; l.append(l); c['edge_paths'] = l", "edge_paths[0]: expected a string"),
    "a dict that contains itself": (
        "d = {}; d['num_partitions'] = d; c['entities']['user'] = d",
        "num_partitions: expected an int, got {",
    ),
    "an error without a text": ("raise U", "eval.py:8: U: an error that cannot be shown"),
    "GeneratorExit": ("raise GeneratorExit", "eval.py:8: GeneratorExit"),
    "an own BaseException": ("raise E('mine')", "eval.py:8: E: mine"),
    "SystemExit": ("raise SystemExit(0)", "eval.py:8: SystemExit: 0"),
    "a path that fails": (
        "import os\n    c['entity_path'] = type('P', (os.PathLike,), {'__fspath__': lambda self: throw()})()",
        "eval.py:2: E: gone",
    ),
    "a value that cannot be shown": (
        "c['seed'] = type('R', (), {'__repr__': lambda self: U().x})()",
        "seed: expected an int, got",
    ),
    "an int of thousands of digits": ("c['seed'] = 10**5000", "seed: expected an int of at most 64 bits, got an int"),
    "a key of an escape": ("c['\\x1b[2J'] = 1", "\\x1b[2J: unknown key"),
    "a message of 200 kB": ("raise ValueError('x' * 200_000)", "eval.py:8: ValueError: xxx"),
    "a message of control characters": ("raise ValueError('\\x1b[31m\\x07\\x00\\u202e')", "\\x1b[31m\\x07\\x00\\u202e"),
    "a lone surrogate": ("raise ValueError('\\udc80')", "ValueError: \\udc80"),
}


@pytest.mark.parametrize("name", PYTHON)
def test_a_python_file_gives_one_line(tmp_path: Path, name: str) -> None:
    statement, message = PYTHON[name]
    case = TinyCase.write(tmp_path)
    settings = json.loads(json.dumps(case.settings))
    text = f"{BEGIN}def get_torchbiggraph_config():\n    c = {settings!r}\n    {statement}\n    return c\n"
    text = text.replace("def get_torch", "\ndef get_torch", 1)
    (tmp_path / "eval.py").write_text(text)

    assert message in refused(tmp_path, "eval.py")


# Keys of a JSON file, and what the only line says.
JSON: dict[str, tuple[dict[str, Any] | str, str]] = {
    "NUL in a path": ({"checkpoint_path": "a\0b"}, "checkpoint_path: expected a directory; "),
    "NUL in the path of edges": ({"edge_paths": ["a\0b.tsv"]}, "edge_paths[0]: expected a file or directory; "),
    "NUL in the path of a model": ({"model": "a\0b"}, "model: expected a file or directory; "),
    "control characters in a path": ({"entity_path": "\x1b]0;title\x07"}, "\\x1b]0;title\\x07"),
    "a path of 200 kB": ({"entity_path": "x" * 200_000}, "entity_path: expected a directory; "),
    "hits_at": ({"hits_at": list(range(1, 20_001))}, "hits_at: expected at most 1000 k, got 20000"),
    "one of hits_at": ({"hits_at": [1, 10**30]}, "hits_at[1]: expected an int of at most 64 bits, got 1000000"),
    "num_uniform_negs": ({"num_uniform_negs": 10**8}, "num_uniform_negs: expected an int <= 1000000, got 100000000"),
    "num_batch_negs": ({"num_batch_negs": 10**8, "batch_size": 10**8}, "num_batch_negs: expected an int <= 1000000"),
    "batch_size": ({"batch_size": 10**12}, "batch_size: expected an int <= 1000000000, got"),
    "workers": ({"workers": 10**6}, "workers: expected an int <= 10000, got 1000000"),
    "dimension": ({"dimension": 10**9}, "dimension: expected an int <= 1048576, got 1000000000"),
    "save_topk": ({"save_topk": 10**9, "candidates": "all"}, "save_topk: expected an int <= 10000, got 1000000000"),
    "sample_edges": ({"sample_edges": 10**30}, "sample_edges: expected an int of at most 64 bits, got"),
    "a negative seed": ({"seed": -1}, "seed: expected an int >= 0 and < 2**63, got -1"),
    "a huge number": ({"margin": 10**400}, "margin: expected a finite number, got an int of 1329 bits"),
    "no number": ({"max_norm": float("nan")}, "max_norm: expected a finite number, got nan"),
    "infinity": ({"target_error": float("inf")}, "target_error: expected a finite number, got inf"),
    "deep": ("[" * 100_000 + "]" * 100_000, "eval.json: not valid JSON: maximum recursion depth exceeded"),
    "many digits": ('{"seed": ' + "9" * 5000 + "}", "eval.json: not valid JSON: Exceeds the limit"),
    "deep in a key": ('{"hits_at": ' + "[" * 500 + "]" * 500 + "}", "hits_at[0]: expected an int, got [[[[...]]]]"),
}


@pytest.mark.parametrize("name", JSON)
def test_a_json_file_gives_one_line(tmp_path: Path, name: str) -> None:
    changed, message = JSON[name]
    case = TinyCase.write(tmp_path)
    settings: Any = case.settings
    if isinstance(changed, dict):
        text = json.dumps({**settings, **changed})
    elif changed.startswith("{"):
        text = (
            json.dumps({key: value for key, value in settings.items() if key not in changed})[:-1] + f", {changed[1:]}"
        )
    else:
        text = changed
    (tmp_path / "eval.json").write_text(text)

    assert message in refused(tmp_path, "eval.json")


@pytest.mark.parametrize("count", [10_001, 10**9, 10**18])
def test_partitions_without_end_are_refused(tmp_path: Path, count: int) -> None:
    case = TinyCase.write(tmp_path)
    settings: Any = json.loads(json.dumps(case.settings))
    for entity in settings["entities"].values():
        entity["num_partitions"] = count
    (tmp_path / "eval.json").write_text(json.dumps(settings))

    done = run_main("--config", "eval.json", "--workers", "1", cwd=tmp_path)

    assert done.status == 1
    assert all(f"expected an int <= 10000, got {count}" in line for line in done.faults)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["-p", f"relations.{'9' * 5000}.operator=none"], "expected an index, a number from 0, got '999"),
        (["-p", f"hits_at={'9' * 5000}"], "hits_at[0]: expected an int, got '999"),
        (["-p", "entity_path=\x1b[8m"], "\\x1b[8m"),
        (["--workers", "1000000"], "--workers 1000000: expected at most 1,024 processes on one host"),
        (["--workers", "9" * 5000], "Invalid value for '--workers'"),
    ],
)
def test_a_flag_gives_one_line(tmp_path: Path, flags: list[str], message: str) -> None:
    TinyCase.write(tmp_path)
    assert message in refused(tmp_path, "eval.json" if (tmp_path / "eval.json").exists() else "eval.py", *flags)


def test_import_graph_refuses_partitions_without_end(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("a\tr\tb\n")
    for number, message in (("10001", "expected at most 10,000"), ("9" * 5000, "expected a number >= 1")):
        flags = ("--output", "graph", "--edges", "a=a.tsv", "--partitions", number)
        done = run_main("import-graph", *flags, cwd=tmp_path)
        assert (done.status, len(done.faults)) == (1, 1)
        assert message in done.err


def refused(folder: Path, config: str, *flags: str) -> str:
    """Run; return the only line."""
    done = run_main("--config", config, *(() if "--workers" in flags else ("--workers", "1")), *flags, cwd=folder)
    assert (done.status, done.out, len(done.faults)) == (1, "", 1), done.err
    assert done.err.removesuffix("\n").isprintable()
    assert len(done.err) < 2100
    return done.err


def test_what_controls_a_terminal_is_escaped() -> None:
    plain = "naïve 東京\u3000a\u00a0b \U0001f600"
    assert printable(plain) == plain
    assert printable("a\x1b[0m\r\n\t\0\x7f\x9b") == r"a\x1b[0m\r\n\t\x00\x7f\x9b"
    assert printable("\u202egnp.exe \u2028 \udcff") == r"\u202egnp.exe \u2028 \udcff"
    assert printable("a" * 5000 + "; do this").endswith("a; do this")
    assert len(printable("a" * 5000)) == 2000

"""Files of types per query, in either form."""

from __future__ import annotations

from pathlib import Path

import pytest

from pbgeval.models.type_lists import read_type_lists
from tests.kit.refusals import fault_of


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_lines_and_both_forms_of_json_hold_the_same(tmp_path: Path) -> None:
    expected = {"q 1": ["a", "b", "a"], "7": [], "ü": ["c"]}

    assert read_type_lists(written(tmp_path / "t.tsv", "q 1\ta\tb\ta\n\n7\nü\tc\t\r\n")) == expected
    text = '{"q 1": ["a", "b", "a"], "7": [], "ü": ["c"]}'
    assert read_type_lists(written(tmp_path / "t.json", text)) == expected
    text = '[{"id": "q 1", "category": "resource", "type": ["a", "b", "a"]}, {"id": 7, "type": []},'
    assert read_type_lists(written(tmp_path / "s.json", text + '{"id": "ü", "type": ["c"]}]')) == expected
    assert read_type_lists(written(tmp_path / "empty.tsv", "")) == {}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.tsv", "a\tx\nb\na\ty\n", ":3: expected each query once, found 'a' again"),
        ("t.tsv", "a\tx\n\ty\n", ":2: expected a query and its types"),
        ("t.json", '{"a": ["x"], "a": []}', ": 'a': expected each query once"),
        ("t.json", '{"a": "x"}', ": 'a': expected a list of names of types, found \"x\""),
        ("t.json", '{"a": [1]}', ": 'a': expected a list of names of types, found [1]"),
        ("t.json", '{"a": {"x": "y"}}', ": 'a': expected a list of names of types"),
        ("t.json", '[{"id": "a"}]', ": element 0: expected"),
        ("t.json", '[{"id": true, "type": []}]', ": element 0: expected"),
        ("t.json", '["a"]', ": element 0: expected"),
        ("t.json", "3", ": expected an object"),
        ("t.json", "{", ": expected JSON, found: "),
    ],
)
def test_other_files_are_refused_with_the_place(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = written(tmp_path / name, text)

    assert fault_of(lambda: read_type_lists(path)).startswith(f"{path}{message}")


def test_a_missing_file_bytes_that_are_no_text_and_half_a_gzip_file_are_named(tmp_path: Path) -> None:
    (tmp_path / "b.tsv").write_bytes(b"a\tx\nb\t\xff\n")
    (tmp_path / "g.tsv").write_bytes(b"\x1f\x8b\x08\x00")

    for name, message in (
        ("none.tsv", ": cannot read this text file: No such file"),
        ("b.tsv", ":2: expected UTF-8 text, found byte 0xff"),
        ("g.tsv", ": cannot read this text file: "),
    ):
        path = tmp_path / name
        assert fault_of(lambda path=path: read_type_lists(path)).startswith(f"{path}{message}")

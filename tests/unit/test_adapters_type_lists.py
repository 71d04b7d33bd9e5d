"""Files of types per query, in either form."""

from __future__ import annotations

from pathlib import Path

import pytest

from pbgeval.models.type_lists import read_type_lists
from tests.kit.refusals import fault_of

EXPECTED = {"q 1": ["a", "b", "a"], "7": [], "ü": ["c"]}


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("t.tsv", "q 1\ta\tb\ta\n\n7\nü\tc\t\r\n", EXPECTED),
        ("t.json", '{"q 1": ["a", "b", "a"], "7": [], "ü": ["c"]}', EXPECTED),
        (
            "s.json",
            '[{"id": "q 1", "category": "resource", "type": ["a", "b", "a"]}, {"id": 7, "type": []},'
            '{"id": "ü", "type": ["c"]}]',
            EXPECTED,
        ),
        ("empty.tsv", "", {}),
    ],
)
def test_lines_and_both_forms_of_json_hold_the_same(
    tmp_path: Path, name: str, text: str, expected: dict[str, list[str]]
) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")

    assert read_type_lists(tmp_path / name) == expected


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.tsv", "a\tx\nb\na\ty\n", ":3: expected each query once, found 'a' again"),
        ("t.tsv", "a\tx\n\ty\n", ":2: expected a query and its types"),
        ("t.json", '{"a": ["x"], "a": []}', ": 'a': expected each query once"),
        ("t.json", '{"a": "x"}', ": 'a': expected a list of names of types, found \"x\""),
        ("t.json", '[{"id": "a"}]', ": element 0: expected"),
        ("t.json", '["a"]', ": element 0: expected"),
        ("t.json", "3", ": expected an object"),
        ("t.json", "{", ": expected JSON, found: "),
        ("b.tsv", b"a\tx\nb\t\xff\n", ":2: expected UTF-8 text, found byte 0xff"),
    ],
)
def test_other_files_are_refused_with_the_place(
    tmp_path: Path, name: str, text: str | bytes | None, message: str
) -> None:
    path = tmp_path / name
    if text is not None:
        path.write_bytes(text.encode() if isinstance(text, str) else text)

    assert fault_of(lambda: read_type_lists(path)).startswith(f"{path}{message}")

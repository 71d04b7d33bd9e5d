import json

import pytest

from pbgeval.storage.entities import (
    read_dynamic_relation_count,
    read_entity_count,
    read_entity_names,
    read_relation_names,
)
from tests.kit.pbg_files import write_entity_counts
from tests.kit.refusals import fault_of


def test_counts_are_read_by_type_and_partition(tmp_path):
    write_entity_counts(tmp_path, {"user": [3, 0], "it em_1": [5]}, num_dynamic_relations=7)

    assert [read_entity_count(tmp_path, "user", partition) for partition in (0, 1)] == [3, 0]
    assert (read_entity_count(tmp_path, "it em_1", 0), read_dynamic_relation_count(tmp_path)) == (5, 7)


def test_an_absent_count_is_none_but_an_absent_number_of_relations_is_a_fault(tmp_path):
    assert [read_entity_count(folder, "user", 0) for folder in (tmp_path, tmp_path / "nowhere")] == [None, None]
    line = fault_of(lambda: read_dynamic_relation_count(tmp_path))
    assert line.startswith(f"{tmp_path / 'dynamic_rel_count.txt'}: no such file")
    assert line.endswith("; check entity_path or dynamic_relations")


@pytest.mark.parametrize("text", ["", "-1", "3.0", "three", "3 4", "1\n2", "\u0663", "9" * 30, b"\xff\xfe\x00"])
def test_a_count_that_is_no_number_is_named_with_what_was_found(tmp_path, text):
    is_text = isinstance(text, str)
    (tmp_path / "entity_count_user_0.txt").write_bytes(text.encode() if is_text else text)

    fault = f"expected a non-negative integer, found {repr(text)[:20]}" if is_text else "cannot read this text file"
    assert f"entity_count_user_0.txt: {fault}" in fault_of(lambda: read_entity_count(tmp_path, "user", 0))


def test_names_come_in_the_order_of_rows_and_none_when_absent(tmp_path):
    assert (read_entity_names(tmp_path, "user", 1), read_relation_names(tmp_path)) == (None, None)
    (tmp_path / "entity_names_user_1.json").write_text(json.dumps(["b", "ä", "a"], indent=4))
    (tmp_path / "dynamic_rel_names.json").write_text("[]")

    assert (read_entity_names(tmp_path, "user", 1), read_relation_names(tmp_path)) == (["b", "ä", "a"], [])


@pytest.mark.parametrize(
    ("text", "found"),
    [('{"a": 1}', "a JSON dict"), ('["a", 3]', "row 1: expected a name in quotes, found 3"), ('["a', "Unterminated")],
)
def test_names_in_another_form_are_a_fault(tmp_path, text, found):
    (tmp_path / "dynamic_rel_names.json").write_text(text)
    line = fault_of(lambda: read_relation_names(tmp_path))

    assert "dynamic_rel_names.json" in line
    assert found in line

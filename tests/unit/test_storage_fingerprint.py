import pytest

from pbgeval.storage.text import fingerprint
from tests.kit.refusals import fault_of


def test_it_stays_what_it_was(tmp_path):
    (tmp_path / "empty").write_bytes(b"")
    for name in ("large", "copy"):
        (tmp_path / name).write_bytes(bytes(range(256)) * 4096)

    assert fingerprint(tmp_path / "empty") == "af5570f5a1810b7af78caf4bc70a660f"
    assert {fingerprint(tmp_path / name) for name in ("large", "copy")} == {"ad491393bd8af829e866016b1b316e6d"}


@pytest.mark.parametrize("size", [1, 4096, 64 * 4096, 64 * 4096 + 1, 1_000_000])
def test_a_change_of_size_of_the_first_or_of_the_last_byte_is_seen(tmp_path, size):
    path = tmp_path / "a"
    content = bytes(size)
    variants = {content, content + b"\0", b"\1" + content[1:], content[:-1] + b"\2"}
    results = set()
    for variant in variants:
        path.write_bytes(variant)
        results.add(fingerprint(path))

    assert len(variants) == len(results)


def test_every_byte_of_a_small_file_counts(tmp_path):
    path = tmp_path / "a"
    content = bytearray(64 * 4096)
    path.write_bytes(content)
    before = fingerprint(path)
    for position in range(0, len(content), 9973):
        content[position] ^= 1
        path.write_bytes(content)
        assert fingerprint(path) != before
        content[position] ^= 1


def test_a_change_between_the_blocks_of_a_large_file_is_not_seen_as_documented(tmp_path):
    path = tmp_path / "a"
    content = bytearray(10_000_000)
    path.write_bytes(content)
    before = fingerprint(path)
    content[4096] ^= 1
    path.write_bytes(content)

    assert fingerprint(path) == before


def test_a_missing_file_is_one_line(tmp_path):
    path = tmp_path / "none"
    assert fault_of(lambda: fingerprint(path)).startswith(f"{path}: cannot read the file: ")

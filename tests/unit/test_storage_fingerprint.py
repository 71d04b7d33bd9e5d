import pytest

from pbgeval.errors import StorageError
from pbgeval.storage.text import fingerprint


def test_it_is_32_hex_digits_and_depends_on_content_alone(tmp_path):
    (tmp_path / "a").write_bytes(b"x" * 1000)
    (tmp_path / "b").write_bytes(b"x" * 1000)
    result = fingerprint(tmp_path / "a")

    assert len(result) == 32
    assert set(result) <= set("0123456789abcdef")
    assert result == fingerprint(tmp_path / "b")


def test_it_stays_what_it_was(tmp_path):
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "large").write_bytes(bytes(range(256)) * 4096)

    assert fingerprint(tmp_path / "empty") == "af5570f5a1810b7af78caf4bc70a660f"
    assert fingerprint(tmp_path / "large") == "ad491393bd8af829e866016b1b316e6d"


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
    with pytest.raises(StorageError) as info:
        fingerprint(tmp_path / "none")
    (line,) = info.value.faults

    assert line.startswith(f"{tmp_path / 'none'}: cannot read the file: ")

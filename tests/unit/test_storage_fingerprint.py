import pytest

from pbgeval.storage.text import fingerprint
from tests.kit.refusals import fault_of


@pytest.mark.parametrize(
    ("content", "digest"),
    [(b"", "af5570f5a1810b7af78caf4bc70a660f"), (bytes(range(256)) * 4096, "ad491393bd8af829e866016b1b316e6d")],
)
def test_it_stays_what_it_was(tmp_path, content, digest):
    (tmp_path / "file").write_bytes(content)

    assert fingerprint(tmp_path / "file") == digest


def of_content(path, content):
    path.write_bytes(content)
    return fingerprint(path)


def flipped(content, place):
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


@pytest.mark.parametrize("size", [1, 4096, 64 * 4096, 64 * 4096 + 1, 1_000_000])
def test_a_change_of_size_of_the_first_or_of_the_last_byte_is_seen(tmp_path, size):
    content = bytes(size)
    variants = {content, content + b"\0", b"\1" + content[1:], content[:-1] + b"\2"}

    assert len(variants) == len({of_content(tmp_path / "a", variant) for variant in variants})


def test_every_byte_of_a_small_file_counts_and_one_between_the_blocks_of_a_large_file_does_not_as_documented(tmp_path):
    small, large = bytes(64 * 4096), bytes(10_000_000)
    variants = [small, *(flipped(small, place) for place in range(0, len(small), 9973))]

    assert len(variants) == len({of_content(tmp_path / "a", variant) for variant in variants})
    assert of_content(tmp_path / "a", large) == of_content(tmp_path / "a", flipped(large, 4096))


def test_a_missing_file_is_one_line(tmp_path):
    path = tmp_path / "none"
    assert fault_of(lambda: fingerprint(path)).startswith(f"{path}: cannot read the file: ")

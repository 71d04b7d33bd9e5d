"""Open what users name for reading: regular files only, and compressed ones only if they are whole.

Every input file is opened here, but for HDF5, torch's zip archives and numpy's maps, which call `check_regular` first.
"""

from __future__ import annotations

import csv
import difflib
import errno
import gzip
import hashlib
import io
import itertools
import json
import math
import os
import re
import reprlib
import stat
import unicodedata
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from fractions import Fraction
from pathlib import Path
from typing import Any, BinaryIO, cast

from pbgeval.errors import ConfigError, StorageError

GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_BYTES_AT_A_TIME = 1 << 18
_MAX_BYTES_OF_A_LINE = 1 << 28  # beyond, it is no text, or compressed to fill memory
_UNPACKED_BYTES = 8 << 20  # that any file may have, however small it is
MAX_RATIO = (
    100  # of a file's size unpacked, where all of it is kept in memory; names behind 250 equal letters come to 46
)
MAX_SMALL_BYTES = 32 << 20
_KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFSOCK: "a socket"}
_DAMAGE = (OSError, EOFError, zlib.error)  # that gzip raises


def check_regular(path: Path) -> os.stat_result:
    """Refuse a pipe, a device or a socket: opening one may wait forever, and reading it may never end.

    Raises:
        OSError: `path` is one of these, or there is nothing.
    """
    status = os.stat(path)
    _check_mode(path, status.st_mode)
    return status


def open_input(path: Path) -> io.BufferedReader:
    """Open a regular file, as `open(path, "rb")` does.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # of a pipe, too, without waiting for it
    try:
        _check_mode(path, os.fstat(descriptor).st_mode)
    except OSError:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def read_bytes(path: Path) -> bytes:
    """Return the content of a regular file.

    Raises:
        OSError: it cannot be read, or is no regular file.
    """
    with open_input(path) as file:
        return file.read()


def read_text(path: Path) -> str:
    """Return the content of a regular file of UTF-8 text.

    Raises:
        OSError: it cannot be read, or is no regular file.
        UnicodeDecodeError: it is not UTF-8.
    """
    return read_bytes(path).decode("utf-8")


def read_small_text(path: Path, max_bytes: int | None = MAX_SMALL_BYTES) -> str | None:
    """Return the text of a small file, None if it (or its folder) is absent.

    Raises:
        StorageError: it exists but is not small, or cannot be read as UTF-8 text.
    """
    with (
        unreadable(path, "cannot read this text file", "; check the path", (OSError, UnicodeDecodeError)),
        suppress(FileNotFoundError, NotADirectoryError),
    ):
        if max_bytes is not None and os.path.getsize(path) > max_bytes:
            raise OSError(errno.EFBIG, f"more than {max_bytes >> 20} MB")
        return read_text(path)
    return None


@contextmanager
def unreadable(
    path: Path, what: str, advice: str = "", kinds: tuple[type[Exception], ...] = (OSError,)
) -> Iterator[None]:
    """Turn what the system says of an input, or an error of other kinds, into a `StorageError`."""
    try:
        yield
    except kinds as error:
        raise StorageError(f"{path}: {what}: {reason_of(error)}{advice}") from error


# What is wrong with a line that has a carriage return within it.
LONE_RETURN = "a carriage return (CR) within the line; end lines with LF or CRLF, and no line with CR alone"


def is_lone_return(error: csv.Error) -> bool:
    """Return whether a reader of CSV has met a carriage return that is neither in quotes nor at the end of a line."""
    return str(error).startswith("new-line character")


def text_lines(path: Path, *, keep_ends: bool = False, max_ratio: int | None = None) -> Iterator[tuple[int, str]]:
    """Yield (number from 1, line) of a plain or gzip file of any size.

    Args:
        path: the file.
        keep_ends: as in `text_blocks`.
        max_ratio: as in `text_blocks`.

    Raises:
        StorageError: as `text_blocks`.
    """
    for first, lines in text_blocks(path, keep_ends=keep_ends, max_ratio=max_ratio):
        yield from enumerate(lines, first)


def rows(path: Path) -> Iterator[tuple[int, str, list[str]]]:
    """Yield (number from 1, line, columns) of each line that is not blank: what is between tabs.

    Args:
        path: a plain or gzip file that fits in memory.

    Raises:
        StorageError: as `text_blocks`.
    """
    for number, line in text_lines(path, max_ratio=MAX_RATIO):
        if line.strip():
            yield number, line, line.split("\t")


def text_blocks(
    path: Path, *, keep_ends: bool = False, max_ratio: int | None = None
) -> Iterator[tuple[int, list[str]]]:
    """Yield (number of the first line, lines), about a quarter of a megabyte at a time.

    Lines before a fault are yielded before it is raised. Checksums of gzip are checked at the end of the file.

    Args:
        path: the file.
        keep_ends: leave the lines as they are, with LF or CRLF at their ends and carriage returns within them.
        max_ratio: how many times as large the file may be unpacked, beside 8 MB; None: any size, as nothing of it is
            kept.

    Raises:
        StorageError: the file cannot be opened or read, is damaged, or a line is not UTF-8 or, unless `keep_ends`, has
            a carriage return within it; says which.
    """
    number, num_bytes = 1, 0
    begun: list[bytes] = []  # the pieces of a line whose end has not been met
    try:
        with open_input(path) as file:
            most = math.inf if max_ratio is None else _UNPACKED_BYTES + max_ratio * os.fstat(file.fileno()).st_size
            stream = _decompressed(path, file)
            while data := stream.read1(_BYTES_AT_A_TIME):
                num_bytes += len(data)
                if num_bytes > most:
                    raise OSError(errno.EFBIG, f"unpacked, it is more than {max_ratio} times as large as the file")
                whole, newline, rest = data.rpartition(b"\n")
                if newline:
                    lines, fault = _decoded(b"".join([*begun, whole, newline]), number == 1, keep_ends)
                    if lines:
                        yield number, lines
                    number += len(lines)
                    if fault:
                        raise StorageError(f"{path}:{number}: {fault}")
                    begun = []
                begun.append(rest)
                if sum(map(len, begun)) > _MAX_BYTES_OF_A_LINE:
                    raise OSError(errno.EFBIG, f"a line of more than {_MAX_BYTES_OF_A_LINE:,} bytes")
            lines, fault = _decoded(b"".join(begun), number == 1, keep_ends)
            if lines:
                yield number, lines
            if fault:
                raise StorageError(f"{path}:{number + len(lines)}: {fault}")
    except _DAMAGE as error:
        raise _unreadable(path, number, error) from error


def check_whole(path: Path) -> bool:
    """Read a text file to its end, so that none is taken for whole that was cut off or damaged.

    For gzip, all checksums are checked. For zstd, only truncation is: the reader checks the checksums.

    Returns:
        Whether lines end in LF here and CRLF there, or a carriage return is elsewhere (not known of zstd).

    Raises:
        StorageError: it is damaged, or cannot be read.
    """
    number, num_returns, num_crlf = 1, 0, 0
    last = b""
    try:
        with open_input(path) as file:
            if file.peek(4)[:4] == ZSTD:
                _walk_zstd(file)
                return False
            stream = _decompressed(path, file)
            while data := stream.read1(_BYTES_AT_A_TIME):
                number += data.count(b"\n")
                if last == b"\r" or b"\r" in data:
                    num_returns += data.count(b"\r")
                    num_crlf += data.count(b"\r\n") + (last == b"\r" and data.startswith(b"\n"))
                last = data[-1:]
    except _DAMAGE as error:
        raise _unreadable(path, number, error) from error
    at_end = last == b"\r"  # which stands for CRLF
    return num_returns > 0 and not num_returns == num_crlf + at_end == number - 1 + at_end


def _check_mode(path: Path, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        found = _KINDS.get(stat.S_IFMT(mode), "something else")
        raise OSError(errno.EINVAL, f"{found}, not a regular file", str(path))


def _decompressed(path: Path, file: io.BufferedReader) -> io.BufferedReader:
    """Return a stream of the content, of which `read1` does not wait for more than one piece."""
    if file.peek(2)[:2] == GZIP:
        return cast("io.BufferedReader", gzip.GzipFile(fileobj=file))
    if path.suffix.lower() == ".gz":
        raise OSError(errno.EINVAL, "no gzip, although its name ends in .gz")
    return file


def _decoded(data: bytes, is_first: bool, keep_ends: bool) -> tuple[list[str], str]:
    """Return the lines of some bytes that begin with a line; those before one that cannot be read, and why."""
    data = data.removeprefix(_BYTE_ORDER_MARK) if is_first else data
    fault = ""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        text = data[: data.rfind(b"\n", 0, error.start) + 1].decode("utf-8")
        fault = f"expected UTF-8 text, found byte 0x{data[error.start]:02x}"
    lines = text.split("\n")
    rest = lines.pop()
    if keep_ends:
        lines = [f"{line}\n" for line in lines]
    if rest:
        lines.append(rest)
    if "\r" in text and not keep_ends:
        lines = [line.removesuffix("\r") for line in lines]
        lone = next((at for at, line in enumerate(lines) if "\r" in line), None)
        if lone is not None:
            return lines[:lone], LONE_RETURN
    return lines, fault


def _unreadable(path: Path, number: int, error: BaseException) -> StorageError:
    hint = did_you_mean(path, os.path.isfile) if isinstance(error, FileNotFoundError) else ""
    where = f"{path}:{number}" if number > 1 else f"{path}"
    return StorageError(f"{where}: cannot read this text file: {reason_of(error)}{hint}")


def reason_of(error: BaseException) -> str:
    """Return what the system says of an error, without the path again; of others, their text on one line."""
    return getattr(error, "strerror", None) or one_line(error) or type(error).__name__


def _walk_zstd(file: BinaryIO) -> None:
    """Pass over all frames (RFC 8878, section 3.1), without what their blocks hold.

    Raises:
        EOFError: the file ends within one.
        OSError: a frame or block is none that there is.
    """
    size = os.fstat(file.fileno()).st_size

    def skip(num_bytes: int) -> None:
        if file.seek(num_bytes, os.SEEK_CUR) > size:
            raise EOFError("zstd data that is cut off")

    def number_of(num_bytes: int) -> int:
        found = file.read(num_bytes)
        skip(num_bytes - len(found))  # nothing, but at the end of the file
        return int.from_bytes(found, "little")

    while file.tell() < size:
        magic = number_of(4)
        if magic >> 4 == 0x184D2A5:  # a frame to be passed over
            skip(number_of(4))
            continue
        if magic != int.from_bytes(ZSTD, "little"):
            raise OSError(errno.EINVAL, "zstd data with something else behind it")
        described = number_of(1)
        is_single, content_size = described >> 5 & 1, (0, 2, 4, 8)[described >> 6]
        skip((1 - is_single) + (0, 1, 2, 4)[described & 3] + (content_size or is_single))
        block = 0
        while not block & 1:  # which marks the last one
            block = number_of(3)
            kind = block >> 1 & 3
            if kind == 3:
                raise OSError(errno.EINVAL, "damaged zstd data")
            skip(1 if kind == 1 else block >> 3)
        skip(4 * (described >> 2 & 1))  # a checksum


# File -> a short text that changes when the file does, in the time of 64 small reads.

_NUM_BLOCKS = 64
_BLOCK_BYTES = 4096


def blocks_of(size: int) -> list[tuple[int, int]]:
    """Return which bytes (start, stop) of a file of some size the fingerprint covers."""
    if size <= _NUM_BLOCKS * _BLOCK_BYTES:
        return [(0, size)]
    starts = [index * (size - _BLOCK_BYTES) // (_NUM_BLOCKS - 1) for index in range(_NUM_BLOCKS)]
    return [(start, start + _BLOCK_BYTES) for start in starts]


def fingerprint_of(size: int, blocks: Iterable[bytes]) -> str:
    """Return the fingerprint of a file of which size and the bytes of `blocks_of` are known."""
    return hashlib.sha256(b"".join([size.to_bytes(8, "little"), *blocks])).hexdigest()[:32]


def joint_fingerprint(*parts: object) -> str:
    """Return a short text that changes when the text of any part does."""
    return hashlib.sha256(" ".join(map(str, parts)).encode()).hexdigest()[:32]


def fingerprint(path: Path) -> str:
    """Return 32 hex digits of the SHA-256 of a file's size and 64 evenly spread blocks of 4 KiB, both ends included.

    Files up to 256 KiB are read whole. In a larger file a change between the blocks that keeps the size is not seen:
    one value altered by hand, for instance. A file that was trained further, written again from other data, truncated
    or only partly copied is seen, as its blocks differ. Name, times and permissions do not enter.

    Raises:
        StorageError: the file is missing or cannot be read.
    """
    try:
        with open_input(path) as file:
            size = os.fstat(file.fileno()).st_size
            return fingerprint_of(
                size, (os.pread(file.fileno(), stop - start, start) for start, stop in blocks_of(size))
            )
    except OSError as error:
        raise StorageError(f"{path}: cannot read the file: {one_line(error)}; check the path") from error


# Values -> the words of a message; names -> cells of a table, and back.

MAX_LETTERS = 2000  # of a line for a terminal


# What a spreadsheet takes for the beginning of a formula (OWASP, "CSV Injection"), and the mark of a text itself.
_MARKED = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20'")


def cell_of(name: str) -> str:
    """Return a name as a cell of CSV or TSV: an apostrophe in front makes a text of what could be a formula."""
    return f"'{name}" if name.startswith(_MARKED) else name


def name_of(cell: str) -> str:
    """Return the name that `cell_of` made a cell of."""
    return cell.removeprefix("'")


def listed(names: Sequence[str], limit: int = 6) -> str:
    """Join names for a message: the first few, and how many more there are."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return (", ".join(one_line(name) for name in names[:limit]) + more) if names else "nothing"


def did_you_mean(path: str | Path, accepts: Callable[[str], bool]) -> str:
    """Return the end of a message about a path that does not exist: the nearest one that does, if one is close."""
    near = nearest_path(path, accepts)
    return f"; did you mean {os.path.join(os.path.dirname(path), near)!r}?" if near else ""


def nearest_path(place: str | Path, accepts: Callable[[str], bool]) -> str | None:
    """Return the name in the same folder that is most like a path's; None if no name is close."""
    folder, name = os.path.split(place)
    try:
        names = [other for other in os.listdir(folder or os.curdir) if accepts(os.path.join(folder, other))]
    except (OSError, ValueError):
        return None
    return next(iter(difflib.get_close_matches(name, names, n=1)), None)


def plural(count: int, one: str, many: str = "") -> str:
    """Write a number of things: 1 edge, 2,000 edges."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def partitions(sizes: Collection[int]) -> str:
    """Write how many partitions there are, and of several the smallest and the largest."""
    ends = " to ".join(f"{size:,}" for size in dict.fromkeys((min(sizes, default=0), max(sizes, default=0))))
    return plural(len(sizes), "partition") + (f" of {ends}" if len(sizes) > 1 else "")


class _Short(reprlib.Repr):
    """Shows the beginning of containers: files may hold some that share their parts, and have no end written out."""

    def repr_int(self, x: int, level: int) -> str:
        """Show an int; one of thousands of digits Python refuses to write."""
        return f"an int of {x.bit_length()} bits" if x.bit_length() > 400 else super().repr_int(x, level)

    def repr_instance(self, x: object, level: int) -> str:
        """Show a subclass of a container as that container."""
        for kind, show in (
            (Mapping, self.repr_dict),
            (list, self.repr_list),
            (tuple, self.repr_tuple),
            (Set, self.repr_set),
        ):
            if isinstance(x, kind):
                return str(show(x, level))  # type: ignore[arg-type]
        return super().repr_instance(x, level)


_short = _Short()
_short.maxlevel = 3
_short.maxlist = 8
_short.maxstring = _short.maxother = 120


def show(value: object) -> str:
    """Write a value as Python does, on one line and not too long."""
    return " ".join(_short.repr(value).split())


def one_line(value: object) -> str:
    """Return the text of a value on one line, shortened for a message."""
    text = show(value) if isinstance(value, Mapping | list | tuple | Set | int) else " ".join(str(value).split())
    return text if len(text) <= 200 else text[:197] + "..."


def printable(text: str) -> str:
    """Return text that is safe for a terminal: one line, control characters escaped.

    Names in files and configs may hold anything; printed as they are, they could move the cursor, recolour or hide
    what stands around them, or be no text at all. The middle of a text that is too long is left out.
    """
    if len(text) > MAX_LETTERS:
        text = f"{text[: MAX_LETTERS - 500]} ... {text[-495:]}"
    if text.isprintable():
        return text
    return "".join(
        letter
        if letter.isprintable() or unicodedata.category(letter) == "Zs"
        else letter.encode("unicode_escape").decode()
        for letter in text
    )


def path_text(path: object, where: str, advice: str = "") -> str:
    """Return a path that a caller gives as text.

    Args:
        path: what was given.
        where: the argument, for the fault.
        advice: what to do with something else, for the fault.

    Raises:
        ConfigError: it is no path.
    """
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str):
        raise ConfigError(f"{where}: expected a path, got {type(path).__name__}{advice and f'; {advice}'}")
    return text


def is_url(path: str) -> bool:
    """Check whether a path is a URL such as s3://bucket/prefix."""
    return "://" in path


# Which files hold edges by name, by the end of their names.

TEXT_OF_EDGES = ("tsv", "txt", "del", "csv")
_EDGES = re.compile(rf"\.({'|'.join(TEXT_OF_EDGES)})(\.(gz|zst))?$|\.(parquet|pq)$", re.IGNORECASE)
_OTHER_EDGES = {
    ".npy": "an array has row numbers, which `model` in a config and import-model read",
    ".h5": "write edges of one HDF5 file as .parquet",
    ".hdf5": "write edges of one HDF5 file as .parquet",
}


def edge_file_type(path: str | Path) -> str | None:
    """Return the type of a file of edges by name (tsv, txt, del, csv or parquet), None for another name."""
    match = _EDGES.search(str(path))
    return None if match is None else (match[1] or "parquet").lower()


def names_file_of_edges(path: str | Path) -> bool:
    """Check whether a path names a file of edges by name: by its extension, or a file that has none."""
    if edge_file_type(path) is not None:
        return True
    return not os.path.splitext(path)[1] and not is_url(str(path)) and os.path.isfile(path)


def unknown_extension(path: str | Path) -> str:
    """Say that a file's name tells no form of edges that can be read."""
    extension = os.path.splitext(path)[1]
    advice = _OTHER_EDGES.get(
        extension.lower(), "edges are read from .tsv, .txt, .del, .csv (also with .gz or .zst) and .parquet"
    )
    return f"{path}: unknown extension {one_line(extension)!r}; {advice}"


_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{1,40}:/{1,2}")  # a Path of a URL has lost a slash


def without_secrets(text: str, *urls: str) -> str:
    """Leave out of every URL of a text what may be a password or a signature: users, queries and fragments.

    Args:
        text: on any number of lines; a URL may be a chain of several (zip://FILE::s3://BUCKET/KEY).
        *urls: those that are known: their secrets are left out wherever they stand, with whatever they are written.
    """
    for url in urls:
        for part in _parts_of(url):
            rest = _SCHEME.sub("", part, count=1).rstrip(":,")
            user, query = _user_of(rest), rest.partition("?")[2]
            values = (field.partition("=")[2] for field in query.split("&"))
            for secret in (f"?{query}", query, user, user[:-1].partition(":")[2], *values):
                text = text.replace(secret, "") if len(secret) > 3 else text  # "" and "@" are no secrets
    return re.sub(r"[^\s'\"]+", lambda found: _clean_word(found[0]), text) if ":/" in text else text


def _clean_word(word: str) -> str:
    return "".join(map(_without_secrets, _parts_of(word))) if ":/" in word else word


def _parts_of(urls: str) -> list[str]:
    """Return the URLs of a chain, or of a list; what is before the first is a part of its own."""
    starts = [0, *(found.start() for found in _SCHEME.finditer(urls)), len(urls)]
    return [urls[start:stop] for start, stop in itertools.pairwise(starts)]


def _user_of(rest: str) -> str:
    """Return what is before the host of a URL without its scheme, with the @; a password may hold a slash."""
    host, _, path = rest.partition("/")
    if "@" in host:
        return f"{host.rpartition('@')[0]}@"
    name, colon, port = host.partition(":")
    has_password = colon and name and not port.isdecimal() and "@" in path
    return f"{rest.rpartition('@')[0]}@" if has_password and not port.startswith(":") else ""


def _without_secrets(url: str) -> str:
    scheme = _SCHEME.match(url)
    if scheme is None:
        return url
    rest = url[scheme.end() :]
    rest = rest.removeprefix(_user_of(rest))
    place, _, secret = rest.partition("?") if "?" in rest else rest.partition("#") if "=" in rest else (rest, "", "")
    end = re.search(r"[^\w=&%+/-]*$", secret)  # what follows in a sentence
    return scheme[0] + place + (end[0] if end else "")


# Amounts of memory -> bytes.

_UNITS = {
    **{f"{prefix}b": 1000**power for power, prefix in enumerate(("", "k", "m", "g", "t"))},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate(("k", "m", "g", "t"), start=1)},
    "": 1,
}
_AMOUNT = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?) ?([a-z]*)", re.ASCII)


def parse_memory(text: str) -> int:
    """Read an amount of memory: bytes, or a number with a unit such as 800MB, 1.5 GB (1000s) or 2GiB (1024s).

    Returns:
        Bytes, rounded down, at least 1.

    Raises:
        ConfigError: If it is no such amount, or none at all.
    """
    match = _AMOUNT.fullmatch(text.strip().lower())
    if match is None or match[2] not in _UNITS:
        raise ConfigError(f"expected an amount of memory such as '800MB', '1.5GB' or '2GiB', got {text[:60]!r}")
    num_bytes = int(Fraction(match[1]) * _UNITS[match[2]])
    if not 1 <= num_bytes < 2**63:
        raise ConfigError(f"expected an amount of memory from 1 byte to 2**63 - 1 bytes, got {text[:60]!r}")
    return num_bytes


def json_text(document: Mapping[str, Any]) -> str:
    """Return JSON as all our files have it."""
    return json.dumps(dict(document), sort_keys=True, indent=2, allow_nan=False) + "\n"

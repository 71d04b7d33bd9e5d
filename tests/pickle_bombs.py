"""Small pickles that take years or gigabytes to read without care; and a process that reads them within limits.

python -m tests.pickle_bombs FOLDER    writes and reads each; prints its name and the one line that refuses it
"""

from __future__ import annotations

import resource
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

MAX_CPU_SECONDS = 240  # of all together, on a machine that others use too
MAX_TWICE = 100_000  # bytes of what is read both as an archive and as a bare pickle
MAX_MORE_BYTES = 2 << 30  # than the libraries take


def text(value: str) -> bytes:
    """Return the opcode of a text."""
    return b"X" + len(value.encode()).to_bytes(4, "little") + value.encode()


def function(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def put(index: int) -> bytes:
    return b"r" + index.to_bytes(4, "little")


def get(index: int) -> bytes:
    return b"j" + index.to_bytes(4, "little")


def repeated(made: bytes, use: bytes, count: int) -> bytes:
    """A list of what `use` makes, many times, of an object that is noted once as 1."""
    return made + put(1) + b"](" + use * count + b"e."


TWICE = b"q\x02h\x02"  # a tuple's only item, again
TREE = b")" + TWICE + b"\x86" + (b"q\x01h\x01\x86") * 60
LONG = text("x" * 1_000_000)
SHARED_DICTS = b"".join(put(n) + b"}(" + text("a") + get(n) + text("b") + get(n) + b"u" for n in range(40))
SHARED_LISTS = b"]" + b"".join(put(n) + b"](" + get(n) + get(n) + b"e" for n in range(60))
LATIN = text("latin1")
META = function("torch._utils", "_rebuild_meta_tensor_no_storage") + (
    b"(" + function("torch", "float32") + b"K\x01K\x01\x86K\x01K\x01\x86\x89tR"
)


def top_down(leaf: bytes) -> bytes:
    """Dicts that hold the next one twice and are noted before they are filled."""
    made = b"".join(b"}" + put(n) for n in range(40))
    filled = b"".join(get(n) + b"(" + text("a") + get(n + 1) + text("b") + get(n + 1) + b"u" for n in range(39))
    return made + filled + get(39) + text("t") + leaf + b"s" + get(0) + b"."


def same_hash(count: int, make: Callable[[int], bytes]) -> bytes:
    return b"}(" + b"".join(make(number) + b"N" for number in range(count)) + b"u."


def long_integer(value: int) -> bytes:
    data = value.to_bytes((value.bit_length() + 8) // 8, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data


PICKLES = {
    "a tuple that holds itself twice is a name": b"}" + TREE + b"Ns.",
    "the same in a set": b"\x8f(" + TREE + b"\x90.",
    "the same is made a set": function("builtins", "set") + b"](" + TREE + b"e\x85R.",
    "the same is made a frozenset": function("builtins", "frozenset") + b"](" + TREE + b"e\x85R.",
    "the same is the key of a storage": b"(" + text("storage") + TREE + b"tQ.",
    "a wide tuple is a name, many times": b"("
    + b"N" * 100_000
    + b"t"
    + put(1)
    + b"}("
    + (get(1) + b"N") * 100_000
    + b"u.",
    "lists that hold themselves twice are called": SHARED_LISTS + b")R.",
    "lists that hold themselves twice are a class": SHARED_LISTS + b")\x81.",
    "text is made bytes, many times": function("_codecs", "encode")
    + put(2)
    + repeated(LONG, get(2) + get(1) + LATIN + b"\x86R", 100_000),
    "text in an encoding of quadratic time": function("_codecs", "encode")
    + text("\xe4\xf6" * 500_000)
    + text("punycode")
    + b"\x86R.",
    "the same from a list of arguments": function("_codecs", "encode")
    + b"]("
    + text("\xe4\xf6" * 500_000)
    + text("punycode")
    + b"eR.",
    "the same for a bytearray": function("builtins", "bytearray")
    + text("\xe4\xf6" * 500_000)
    + text("punycode")
    + b"\x86R.",
    "shapes of a long tuple": function("torch", "Size")
    + put(2)
    + repeated(b"(" + b"K\x01" * 500_000 + b"t", get(2) + get(1) + b"\x85R", 100_000),
    "sets of a long list": function("builtins", "set")
    + put(2)
    + repeated(
        b"](" + b"".join(b"J" + n.to_bytes(4, "little") for n in range(300_000)) + b"e",
        get(2) + get(1) + b"\x85R",
        100_000,
    ),
    "a bytearray of a length": function("builtins", "bytearray") + b"\x8a\x05\x00\x00\x00\x00\x10\x85R.",
    "bytearrays of bytes": function("_codecs", "encode")
    + LONG
    + LATIN
    + b"\x86R"
    + put(1)
    + function("builtins", "bytearray")
    + put(2)
    + b"]("
    + (get(2) + get(1) + b"\x85R") * 100_000
    + b"e.",
    "a tensor that is called for": function("torch", "FloatTensor") + b"J\x00\x00\x00\x40\x85R.",
    "a tensor that is made for": function("torch", "Tensor") + b"J\x00\x00\x00\x40\x85\x81.",
    "a storage that is called for": function("torch.storage", "UntypedStorage") + b"\x8a\x05\x00\x00\x00\x00\x10\x85R.",
    "empty lists": b"](" + b"]" * 4_000_000 + b"e.",
    "marks": b"(" * 30_000_000 + b".",
    "classes": b"](" + b"".join(function("m", f"C{n}") for n in range(500_000)) + b"e.",
    "a number of many digits": b"}\x8b" + (1_000_000).to_bytes(4, "little") + b"\x01" * 1_000_000 + b"Ns.",
    "tuples of one hash": same_hash(400_000, lambda n: long_integer(n * (2**61 - 1)) + b"\x85"),
    "numbers of one hash": same_hash(400_000, lambda n: long_integer(n * (2**61 - 1))),
    "tensors below shared dicts": b"}" + text("t") + META + b"s" + SHARED_DICTS + b".",
    "dicts that are filled from the top": top_down(META),
    "long names below long names": LONG
    + put(1)
    + META
    + put(2)
    + b"".join(b"}" + get(1) + get(n + 2) + b"s" + put(n + 3) for n in range(500))
    + get(502)
    + b".",
}


def read(path: Path) -> str:
    """Return the one line that refuses a file."""
    from pbgeval.errors import StorageError
    from pbgeval.models.pickles import read_pickle
    from pbgeval.models.tensors import tensors_of

    try:
        if path.suffix == ".pt":
            tensors_of(path)
        else:
            read_pickle(path)
    except StorageError as error:
        return str(error).replace(str(path), "FILE")
    except BaseException as error:
        return f"raised {type(error).__name__}"
    return "read"


def main(folder: Path) -> None:
    """Read each, as an archive and as a bare pickle."""
    import pbgeval.models.tensors  # noqa: F401 - before memory is limited

    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MAX_MORE_BYTES,) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_SECONDS,) * 2)
    for name, program in PICKLES.items():
        data = b"\x80\x02" + program
        with zipfile.ZipFile(folder / "x.pt", "w") as archive:
            archive.writestr("archive/data.pkl", data)
            archive.writestr("archive/byteorder", "little")
            archive.writestr("archive/version", "3\n")
        (folder / "bare").write_bytes(data)
        for path in (folder / "x.pt", folder / "bare")[: 2 if len(data) < MAX_TWICE else 1]:
            sys.stdout.write(f"{name}\t{path.name}\t{read(path)}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""What has broken programs before: names, numbers, lines of configs, values of settings, programs of pickles."""

from __future__ import annotations

import pickle
from typing import Any

import h5py
import numpy as np

# Of datasets
DTYPES: tuple[Any, ...] = (
    *("f8", ">f4", ">i4", "f2", "i1", "u8", "c8", "S5", "V8", "?", h5py.string_dtype(), h5py.vlen_dtype("i4")),
    *([("x", "f4"), ("y", "i8")], h5py.enum_dtype({"a": 0, "b": 1}, "i1"), h5py.ref_dtype, "longdouble"),
)
CONVERTED = ("f8", "f2", ">f4", ">i8", "u8", "i4", "c16", "S20", "longdouble")
ODD_NAMES = (b"\xff\xfe", b"9" * 30, b"-1", b"x" * 60_000, b" ", b"\x1b[31m", b"..", b"lhs\xe2\x80\xae")
ODD_ATTRIBUTES: tuple[Any, ...] = (
    *("x" * 60_000, b"\xff\xfe", np.arange(9), 1.5, 2**63, h5py.Empty("f4"), "\x1b[2J", "lhs_operators.0.x"),
)
# Of texts
ODD_NUMBERS = (
    *(b"", b"-1\n", b"1e3\n", b"9" * 5000, b"\xff\n", b"3\n" * 10**6, "\uff19\n".encode(), b"0\n", b"+9\n", b"9\0\n"),
)
ODD_BYTES = (
    *(b"\0", b"\xff", b"\xef\xbb\xbf", b"\r", b"\r\n", b'"', b"\t", b"\n\n", b"\x1b[2J", b"nan", b"inf", b"1e999"),
    *(b"9" * 5000, b"-", b"x" * 300_000, b"\xe2\x80\xa8", b"#", b"a\tb\tc\n" * 1000, b"\xc4\xb0", b"[" * 9999),
)
ODD_OVERRIDES = (
    *("=", "=1e999", "=99999999999999999999", "=-1", "=\x1b[31m", "=a,b", "..x=1", "[0]=1", "", "=nan", ".0.0.0=1"),
)
ODD_JSON = (
    *("[" * 100_000, '{"a":' * 50_000, "9" * 5000, "NaN", "1e999", '"\\ud800"', '"\\u0000\\u001b[2J"', "null", "{}"),
)

# Of configs

LINES_OF_PYTHON = (
    # exceptions
    "class E(Exception):\n    def __str__(self):\n        raise ValueError('no text')\nraise E",
    "class E(Exception):\n    def __str__(self):\n        return None\nraise E",
    "class E(BaseException):\n    pass\nraise E('own')",
    "class E(SyntaxError):\n    filename = property(lambda self: 1 / 0)\nraise E('x')",
    "raise GeneratorExit('x')",
    "raise KeyboardInterrupt",
    "raise SystemExit({'a': 1})",
    "raise StopIteration",
    "raise MemoryError",
    "raise ExceptionGroup('many', [ValueError(str(n)) for n in range(99)])",
    "raise BaseExceptionGroup('many', [GeneratorExit(), ValueError()])",
    "raise ValueError('x' * 200_000)",
    "raise ValueError('\\n'.join(map(str, range(500))))",
    "raise ValueError('a\\x1b[31m\\x00\\x07\\x9b2J\\u202eb')",
    "raise ValueError('\\udcff')",
    "raise SyntaxError('x', ('eval.py', 10**400, 1, 'x' * 9999))",
    "raise type('x' * 200_000, (Exception,), {})('y')",
    "raise type('\\x1b[2J', (Exception,), {})('y')",
    "def f():\n    return f()\nf()",
    "import sys\nsys.path.clear()\nimport nothing_of_that_name",
    "exec('(' * 500 + ')' * 500)",
    "x = 10**5000\nraise ValueError(x)",
    # values that are no plain values
    "x = []\nx.append(x)\nsettings['edge_paths'] = x",
    "x = {}\nx['x'] = x\nsettings['entities'] = x",
    "settings['self'] = settings",
    "settings['entities']['user'] = settings['entities']",
    "x = []\nfor _ in range(100_000):\n    x = [x]\nsettings['edge_paths'] = x",
    "x = []\nfor _ in range(60):\n    x = [x, x]\nsettings['hits_at'] = x",
    "class L(list):\n    def __len__(self):\n        raise ValueError('no length')\nsettings['hits_at'] = L([1])",
    "class D(dict):\n    def items(self):\n        raise ValueError('no items')\nsettings = D(settings)",
    "class S(str):\n    def __str__(self):\n        raise ValueError('no text')\nsettings['comparator'] = S('dot')",
    "class S(str):\n    def __eq__(self, other):\n        raise ValueError('none')\n    __hash__ = str.__hash__\n"
    "settings['comparator'] = S('dot')",
    "class R:\n    def __repr__(self):\n        raise ValueError('no text')\nsettings['dimension'] = R()",
    "class R:\n    def __repr__(self):\n        return 'x' * 200_000\nsettings['dimension'] = R()",
    "class R:\n    def __repr__(self):\n        return '\\x1b[2J\\0'\nsettings['dimension'] = R()",
    "class R:\n    __class__ = property(lambda self: 1 / 0)\nsettings['dimension'] = R()",
    "class I(int):\n    def __lt__(self, other):\n        raise ValueError('no order')\nsettings['dimension'] = I(8)",
    "import numpy\nsettings['hits_at'] = numpy.arange(1, 5)",
    "import numpy\nsettings['dimension'] = numpy.int64(8)",
    "import torch\nsettings['margin'] = torch.tensor([1.0, 2.0])",
    "settings['hits_at'] = (n for n in range(9))",
    "settings['hits_at'] = {1, 2}",
    "settings[1] = 2",
    "settings[None] = 2",
    "settings[('a', 'b')] = 2",
    "settings['\\x1b]0;x\\x07'] = 1",
    "settings['x' * 200_000] = 1",
    "settings['\\udcff'] = 1",
    "settings['x\\ny'] = 1",
    "settings = None",
    "settings = [settings]",
    "settings['relations'] = settings['relations'] * 5000",
    "settings['relations'][0]['name'] = '\\x1b[2J\\0'",
    "settings['relations'][0]['lhs'] = 'x' * 200_000",
    "settings['relations'][0]['operator'] = '\\udcff'",
    "settings['entities']['\\0'] = {'num_partitions': 1}",
    "settings['entities']['../../x'] = {'num_partitions': 1}",
    "settings['entities']['x' * 300] = {'num_partitions': 1}\nsettings['relations'][0]['lhs'] = 'x' * 300",
    *(f"settings[{key!r}] = 'a\\0b'" for key in ("entity_path", "checkpoint_path", "model", "relation_groups")),
    *(f"settings[{key!r}] = ['a\\0b']" for key in ("edge_paths", "filter_paths", "train_paths", "restrict_entities")),
    *(
        f"settings['entity_path'] = {path}"
        for path in ("'x' * 9999", "'/dev/zero'", "'\\x1b[2J'", "'~x'", "'s3://'", "'a://b'")
    ),
)

VALUES = (
    *(
        "10**9",
        "-1",
        "0",
        "2**63",
        "10**400",
        "float('nan')",
        "float('inf')",
        "1e308",
        "True",
        "None",
        "''",
        "'\\0'",
        "[]",
    ),
    *(
        "[[]]",
        "{}",
        "['']",
        "['\\0']",
        "[None]",
        "'x' * 200_000",
        "list(range(1, 20_001))",
        "b'x'",
        "'\\x1b[31m'",
        "object()",
    ),
    *(
        "'../../..'",
        "'/dev/zero'",
        "'/dev/null'",
        "['/dev/zero']",
        "'.'",
        "['.']",
        "'\\udcff'",
        "['a'] * 20_000",
        "{1: 2}",
    ),
    *(
        "[10**400]",
        "[float('nan')]",
        "['/proc/self/mem']",
        "'/proc/self/mem'",
        "'eval.py'",
        "['eval.py']",
        "'1'",
        "1.5",
        "7",
    ),
)

# Settings, and whether they must be refused: the other ones may be right for a larger graph.
HUGE_SETTINGS = (
    (("entities.user.num_partitions=1000000000",), True),
    (("candidates=all", "save_topk=1000000000"), True),
    (("hits_at=" + ",".join(map(str, range(1, 20_001))),), True),
    (("candidates=sampled", "num_uniform_negs=100000000"), True),
    (("candidates=sampled", "num_uniform_negs=1000000000000"), True),
    (("candidates=sampled", "num_batch_negs=1000000000"), False),
    (("candidates=sampled", "num_batch_negs=4611686018427387904"), False),
    (("dimension=1000000000",), True),
    (("workers=1000000000",), False),
    (("pbg_semantics=true", "workers=1000000000"), False),
    (("pbg_semantics=true", "batch_size=1000000000000"), False),
    (("sample_edges=1000000000000",), False),
    (("hits_at=9223372036854775807",), False),
    (("max_memory=1",), False),
    (("max_memory=99999999999999999999GB",), False),
    (("margin=1e308", "compute_loss=true"), False),
    (("max_norm=1e-45",), False),
    (("target_error=1e-300", "sample_edges=5"), False),
    (("seed=9223372036854775807",), False),
)

_DEEP = b"(" * 100_000 + b"t" * 100_000
_SHARED = b"]q\0" + b"".join(b"]q%ch%ch%ce" % (n + 1, n, n) for n in range(60))
PROGRAMS_OF_PICKLES = (
    b"",
    b".",
    b"\x80\x05N.",
    b"\x80\xffN.",
    b"cos\nsystem\n(S'true'\ntR.",
    b"cbuiltins\neval\n(S'1/0'\ntR.",
    b"cposix\n_exit\n(I0\ntR.",
    b"ctorch\nload\n(S'/dev/zero'\ntR.",
    b"\x80\x02" + _DEEP + b".",
    b"]" * 100_000 + b"a" * 99_999 + b".",
    b"\x80\x02" + _SHARED + b".",
    b"\x80\x02Nr\xff\xff\xff\xff.",
    b"\x80\x04\x8d" + (2**62).to_bytes(8, "little") + b"x.",
    b"\x80\x04\x8e" + (2**63 - 1).to_bytes(8, "little") + b"x.",
    b"\x80\x05\x96" + (2**40).to_bytes(8, "little") + b"x.",
    b"\x80\x02\x8b\xff\xff\xff\x7f1.",
    b"I" + b"9" * 5000 + b"\n.",
    b"F" + b"9" * 5000 + b"\n.",
    b"cbuiltins\nset\n)R(]e.",
    b"ccollections\nOrderedDict\n)R(]Ne.",
    b"\x80\x02}(U\x05modelU\x01xU\x06configU\x01yu.",
    b"\x80\x02}(U\x05model}U\x06config}U\x05model}u.",
    b"\x80\x02}(X\x06\0\0\0config}X\x05\0\0\0modelX\x09\0\0\0\x1b[2J\x1b[0m\0sX\x05\0\0\0model}u.",
    pickle.dumps({"model": {"x" * 100_000: 1}, "config": {"model": "complex"}}, 2),
    pickle.dumps({"model": {}, "config": {"model": "\x1b[2J\0" * 99}}, 2),
    pickle.dumps({"model": [], "config": {"model": "transe", "transe": {"l_norm": float("nan")}}}, 2),
    pickle.dumps(
        {"model": ({1: 2, None: 3, "x": 4}, {}), "config": {"model": "rotate", "rotate": {"l_norm": 10**400}}}, 2
    ),
    pickle.dumps({n: n for n in range(10_000)}, 2),
)

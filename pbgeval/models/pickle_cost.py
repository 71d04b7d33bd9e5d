"""A pickle -> a refusal if reading it would take too many steps or too much memory; no object is built.

A pickle of 300 bytes may ask for 2^60 steps: a tuple that holds itself twice, 60 times over, is hashed as a tree where
it is a name. So its opcodes are walked with what each object costs. All of them draw from one budget of steps and
bytes: objects, letters, names that are hashed, and what constructors copy. Work after the reading, such as the names
of tensors in dicts that are shared, draws from budgets of its own.
"""

from __future__ import annotations

import pickletools
import sys
from collections.abc import Iterable, Sequence

from attrs import Factory, define

MAX_STEPS = 1 << 24
MAX_BYTES = 512 << 20
_MAX_LEVELS = 100  # of tuples: they are hashed on the stack of C, without a limit of Python's
_MAX_BITS = 8 * 255  # of an integer: beyond, it takes another opcode
_HASH_BITS = 60  # of integers that hash to themselves
_ODD_PER_STEP = 64  # comparisons with names of the same hash that are as slow as one opcode

# Estimates of the bytes of an object, or of what is noted of it here if that is more; what is thrown away counts too.
_SMALL, _REFERENCE, _OBJECT, _CONTAINER, _ENTRY, _NOTED, _INSTANCE, _CLASS = 32, 8, 140, 200, 100, 100, 1000, 2000

_MAX_NAME = 1000  # letters of the name of a function
_LATIN = "latin1"  # as which pickle writes bytes; other encodings take quadratic time
_CONSTRUCTORS = {
    *("OrderedDict", "Counter", "Parameter", "Size", "device", "encode", "bytearray", "set", "frozenset", "complex"),
    *("defaultdict", "_get_layout"),
}
_HASHING = {"OrderedDict", "Counter", "set", "frozenset", "defaultdict"}
_GROWS = {"APPEND", "APPENDS", "SETITEM", "SETITEMS", "ADDITEMS"}
_OF_DICTS, _OF_SETS = {"SETITEM", "SETITEMS", "DICT"}, {"ADDITEMS", "FROZENSET"}


class TooCostlyError(ValueError):
    """Reading a file would take too many steps or too much memory."""


@define
class Budget:
    """Steps and bytes that are left."""

    steps: int = MAX_STEPS
    num_bytes: int = MAX_BYTES

    def draw(self, steps: int, num_bytes: int = 0) -> None:
        """Use some of it.

        Raises:
            TooCostlyError: there is not enough left.
        """
        self.steps -= steps
        self.num_bytes -= num_bytes
        if self.steps < 0 or self.num_bytes < 0:
            raise TooCostlyError("more objects, or more work, than tensors and plain values need")


@define(eq=False)
class _Value:
    """What is known of an object before it is built."""

    levels: int = 0  # of tuples in it
    tree: int = 1  # objects, as often as they can be reached: what it takes to hash it
    copied: int = 0  # bytes that a constructor copies
    is_odd: bool = False  # as a name it may have a hash that was chosen
    num_odd: int = 0  # names or items that are odd
    text: str | None = None
    function: str = ""  # "module name", of what can be called
    number: int = 0
    items: Sequence[_Value] = ()  # of a tuple


_PLAIN, _FLOAT = _Value(), _Value(is_odd=True)  # None, truth values, small numbers; others


@define
class _Walk:
    budget: Budget
    stack: list[_Value] = Factory(list)
    marks: list[int] = Factory(list)
    memo: dict[int, _Value] = Factory(dict)
    functions: set[str] = Factory(set)

    def step(self, code: pickletools.OpcodeInfo, argument: object) -> None:
        """Follow an opcode."""
        self.budget.draw(1, _REFERENCE)
        if code.name == "MARK":
            self.budget.draw(0, _NOTED)
            self.marks.append(len(self.stack))
        elif "GET" in code.name:
            self.stack.append(self.memo[_integer(argument)])
        elif "PUT" in code.name or code.name == "MEMOIZE":
            self.budget.draw(0, _NOTED)
            self.memo[len(self.memo) if argument is None else _integer(argument)] = self.stack[-1]
        elif code.name == "DUP":
            self.stack.append(self.stack[-1])
        elif code.name == "POP" and self.marks and self.marks[-1] == len(self.stack):
            self.marks.pop()
        else:
            taken = code.stack_before
            has_mark = pickletools.markobject in taken
            size = len(self.stack)
            first = self.marks.pop() - taken.index(pickletools.markobject) if has_mark else size - len(taken)
            if first < 0:
                raise ValueError("an opcode without its objects")
            items = self.stack[first:]
            del self.stack[first:]
            if code.stack_after:
                self.stack.append(self._nested(code.name, items, self._made(code.name, argument, items)))

    def _nested(self, name: str, items: list[_Value], made: _Value) -> _Value:
        """Note the levels of tuples of what was made of items."""
        if items:
            made.levels = max(made.levels, *(item.levels for item in items)) + ("TUPLE" in name)
        if made.levels > _MAX_LEVELS:
            raise TooCostlyError("tuples of many levels")
        return made

    def _made(self, name: str, argument: object, items: list[_Value]) -> _Value:
        """Return what an opcode makes of objects, and draw what that costs."""
        if name in _GROWS and items:
            return self._grown(name, items[0], items[1:])
        if name in ("GLOBAL", "STACK_GLOBAL"):
            return self._function(str(argument) if name == "GLOBAL" else " ".join(item.text or "?" for item in items))
        if name in ("INST", "EXT1", "EXT2", "EXT4"):
            raise ValueError(f"the opcode {name}, which is of old programs")
        if name in ("REDUCE", "NEWOBJ", "NEWOBJ_EX", "OBJ") and items:
            return self._called(name, items[0], items[1:])
        if name in ("BUILD", "READONLY_BUFFER"):
            self._copy(items[1].items or items[1:] if len(items) > 1 else ())
            return items[0]
        if name == "BINPERSID":
            self.budget.draw(items[0].tree, _INSTANCE)
            return _Value()
        if "TUPLE" in name:
            self.budget.draw(0, _OBJECT + _REFERENCE * len(items))
            return _Value(tree=_tree(items), copied=_ENTRY * len(items), is_odd=True, num_odd=_odd(items), items=items)
        if name in ("LIST", "DICT", "FROZENSET") or name.startswith("EMPTY_"):
            self.budget.draw(0, _CONTAINER)
            made = _Value(is_odd=name == "FROZENSET")
            return self._grown(name, made, items)
        return self._plain(argument)

    def _plain(self, argument: object) -> _Value:
        """Return a number, a text, bytes or None."""
        if isinstance(argument, str | bytes | bytearray):
            self.budget.draw(len(argument) >> 6, _OBJECT + sys.getsizeof(argument))
            is_name = isinstance(argument, str) and len(argument) <= _MAX_NAME
            return _Value(copied=len(argument), text=str(argument) if is_name else None)
        self.budget.draw(0, _SMALL)
        if not isinstance(argument, int):
            return _FLOAT if isinstance(argument, float) else _PLAIN
        if 0 <= argument < _CONTAINER:
            return _PLAIN
        self.budget.draw(0, _OBJECT)
        if argument.bit_length() > _MAX_BITS:
            raise TooCostlyError(f"an integer of {argument.bit_length():,} bits")
        return _Value(number=argument, is_odd=argument.bit_length() > _HASH_BITS)

    def _grown(self, name: str, container: _Value, items: Sequence[_Value]) -> _Value:
        """Add items to a list, a dict or a set."""
        is_dict, is_set = name in _OF_DICTS, name in _OF_SETS
        names = items[::2] if is_dict else items if is_set else ()
        for key in names:
            container.num_odd += key.is_odd
            self.budget.draw(key.tree + (container.num_odd // _ODD_PER_STEP if key.is_odd else 0))
        container.num_odd += 0 if names else _odd(items)
        container.tree += _tree(items) - 1
        container.copied += _ENTRY * len(items)
        self.budget.draw(len(items), _ENTRY * len(items))
        return container

    def _function(self, name: str) -> _Value:
        if name not in self.functions:
            self.functions.add(name)
            self.budget.draw(0, _CLASS)
        self.budget.draw(len(self.functions))
        return _Value(function=name)

    def _called(self, opcode: str, function: _Value, arguments: Sequence[_Value]) -> _Value:
        """Return the result of a call; classes that are not known make a stand-in, or are refused later."""
        if not function.function:
            raise ValueError("a call of what is no function")
        module, _, name = function.function.rpartition(" ")
        given = arguments if opcode == "OBJ" else [*arguments[0].items, *arguments[1:]]
        is_rebuilding = name.startswith("_rebuild_") and opcode == "REDUCE"
        if module.partition(".")[0] == "torch" and name.endswith(("Tensor", "Storage")) and not is_rebuilding:
            raise ValueError(f"a pickle that calls {module}.{name}")
        if name in ("encode", "bytearray") and len(given) > 1 and given[1].text != _LATIN:
            raise ValueError("text in another encoding than that of bytes in a pickle")
        if name == "bytearray":
            self.budget.draw(0, max(0, *(of.number for of in given), 0))
        self.budget.draw(len(self.functions), _INSTANCE if is_rebuilding else _CONTAINER)
        self._copy(given)
        made = _Value(copied=sum(of.copied for of in given), is_odd=name in _CONSTRUCTORS)
        if name in _HASHING:
            num_odd = sum(of.num_odd for of in given)
            self.budget.draw(sum(of.tree for of in given) + num_odd * num_odd // (2 * _ODD_PER_STEP))
            made.tree, made.num_odd = _tree(given), num_odd
        return made

    def _copy(self, values: Sequence[_Value]) -> None:
        num_bytes = sum(of.copied for of in values)
        self.budget.draw(num_bytes // _ENTRY, num_bytes)


def check_cost(data: bytes) -> None:
    """Refuse a pickle that takes too much to read.

    Raises:
        TooCostlyError: it takes too many steps, too much memory, or tuples of too many levels.
        ValueError: it is damaged, or calls what no table of vectors needs.
    """
    walk = _Walk(Budget())
    for code, argument, _ in pickletools.genops(data):
        walk.step(code, argument)


def _integer(argument: object) -> int:
    assert isinstance(argument, int)
    return argument


def _tree(items: Iterable[_Value]) -> int:
    return min(1 + sum(of.tree for of in items), 1 << 60)  # beyond, no budget is enough


def _odd(items: Iterable[_Value]) -> int:
    return sum(of.is_odd for of in items)

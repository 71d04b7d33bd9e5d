"""The program of a pickle -> a refusal where merely building what it says would end the process.

Nothing of it is executed: opcodes are followed as `pickletools` reads them, with the nesting and the size of each value
in its place. Python's unpickler makes room for the highest number under which a value is remembered (gigabytes, of a
file of a few bytes), and hashes nested tuples by recursion: a deep one ends the process without an exception, and one
whose every level holds the next twice takes for ever.
"""

from __future__ import annotations

import pickletools

from attrs import define, field

MAX_DEPTH = 400  # Python's own pickler gives up below 1000
MAX_SHARING = 100  # times the program's length: values with shared parts written out; LibKGE's are below 1

_MUTATORS = ("APPEND", "APPENDS", "SETITEM", "SETITEMS", "ADDITEMS", "BUILD")
_REMEMBER = ("PUT", "BINPUT", "LONG_BINPUT")
_RECALL = ("GET", "BINGET", "LONG_BINGET")


@define(eq=False)
class _Value:
    """What is known of a value; one object for a container wherever it is held, as it may still grow."""

    depth: int = 0
    size: int = 1

    def take(self, parts: list[_Value]) -> None:
        self.depth = max(self.depth, 1 + max((part.depth for part in parts), default=0))
        self.size += sum(part.size for part in parts)


@define(eq=False)
class _Machine:
    """The stack and the memory of an unpickler."""

    length: int  # of the program, bytes
    stack: list[_Value] = field(factory=list)
    marks: list[int] = field(factory=list)
    memory: dict[int, _Value] = field(factory=dict)

    def step(self, opcode: pickletools.OpcodeInfo, argument: object) -> None:
        if opcode.name in _RECALL and isinstance(argument, int):
            self.stack.append(self.memory[argument])
        elif opcode.name == "MEMOIZE":
            self.memory[len(self.memory)] = self.stack[-1]
        elif opcode.name in _REMEMBER and isinstance(argument, int):
            if not 0 <= argument <= self.length:
                raise ValueError(f"a value remembered as number {argument} by {self.length} bytes")
            self.memory[argument] = self.stack[-1]
        elif opcode.name == "MARK":
            self.marks.append(len(self.stack))
        elif opcode.name == "POP" and self.marks and self.marks[-1] == len(self.stack):
            self.marks.pop()
        elif opcode.name == "DUP":
            self.stack.append(self.stack[-1])
        else:
            self._build(opcode)

    def _build(self, opcode: pickletools.OpcodeInfo) -> None:
        taken = self._taken(opcode)
        if opcode.name in _MUTATORS:
            taken[0].take(taken[1:])
            self.stack.append(taken[0])
        else:
            for _ in opcode.stack_after:
                made = _Value()
                if taken:
                    made.take(taken)
                self.stack.append(made)
        if self.stack and (self.stack[-1].depth > MAX_DEPTH or self.stack[-1].size > MAX_SHARING * self.length):
            raise ValueError("values too deep in each other, or far more of them than the file can hold")

    def _taken(self, opcode: pickletools.OpcodeInfo) -> list[_Value]:
        """Take from the stack what an opcode does, in the order in which it lies there."""
        number = len(opcode.stack_before)
        if pickletools.markobject in opcode.stack_before:
            number = len(self.stack) - self.marks.pop() + opcode.stack_before.index(pickletools.markobject)
        if number > len(self.stack):
            raise ValueError("a value is missing")
        taken = self.stack[len(self.stack) - number :]
        del self.stack[len(self.stack) - number :]
        return taken


def check_program(data: bytes) -> None:
    """Follow a program to its end.

    Raises:
        ValueError: it is none, or what it builds ends the process.
        LookupError: it takes what is not there.
    """
    machine = _Machine(len(data))
    for opcode, argument, _ in pickletools.genops(data):
        machine.step(opcode, argument)

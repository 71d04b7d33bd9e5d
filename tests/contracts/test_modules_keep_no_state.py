"""No module keeps state: what a function changes is made by its caller, not when a module is imported.

A name of a module is its state if a function of any module assigns it, or changes the object that it stands for. So is
what a cached function returns, which is made once in a process. Names of other libraries are theirs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from attrs import frozen

from tests.kit.commands import REPOSITORY

# Functions that return one object for each process, which others change, and what a thread has while it does some work.
# What is written beside them says why it is not handed on.
PER_PROCESS = {
    "jit.py": {"_announcer"},
    "scoring/device_exact.py": {"_devices_without_screen"},
    "scoring/device_scores.py": {"_devices_by_loop"},
    "scoring/deferred.py": {"_doubted", "_working"},
    "scoring/product.py": {"_rules_of_process"},
}

CHANGING_METHODS = {
    *("add", "append", "appendleft", "clear", "difference_update", "discard", "extend", "fill", "insert"),
    *("intersection_update", "pop", "popitem", "popleft", "put", "remove", "reset", "reverse", "rotate", "set"),
    *("setdefault", "sort", "symmetric_difference_update", "update"),
}
CACHES = {"cache", "lru_cache"}
Functions = ast.FunctionDef | ast.AsyncFunctionDef


def state_of(module: ast.Module) -> set[str]:
    """Return the names of a module that its functions change."""
    names = {name for statement in module.body for name in _names_bound_by(statement)}
    cached = {of.name for of in ast.walk(module) if isinstance(of, Functions) and _is_cached(of)}
    return {
        name for function in _outermost_functions(module) for name in _changed_by(function, _Scope(names, cached, {}))
    }


def _names_bound_by(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement of a module binds, without those of other libraries."""
    if isinstance(statement, ast.Import | ast.ImportFrom):
        of = getattr(statement, "module", None)
        names = (
            (of or alias.name).partition(".")[0] == "pbgeval" and (alias.asname or alias.name)
            for alias in statement.names
        )
        yield from filter(None, names)
    elif isinstance(statement, Functions | ast.ClassDef):
        yield statement.name
    else:
        yield from (of.id for of in ast.walk(statement) if isinstance(of, ast.Name) and isinstance(of.ctx, ast.Store))


def _is_cached(function: Functions) -> bool:
    return any(
        isinstance(of, ast.Name | ast.Attribute) and (of.id if isinstance(of, ast.Name) else of.attr) in CACHES
        for decorator in function.decorator_list
        for of in ast.walk(decorator)
    )


def _outermost_functions(node: ast.AST) -> Iterator[Functions]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Functions):
            yield child
        else:
            yield from _outermost_functions(child)


@frozen
class _Scope:
    """What names mean inside a function."""

    names: set[str]  # of the module
    cached: set[str]  # functions of the module that are cached
    local: dict[str, str | None]  # local name -> the module's name that it stands for, if any

    def inside(self, nodes: list[ast.AST]) -> _Scope:
        """Return the scope of a function of these nodes in this one."""
        local = dict(self.local)
        for of in nodes:
            if isinstance(of, ast.arg):
                local[of.arg] = None
            elif isinstance(of, ast.Name) and isinstance(of.ctx, ast.Store):
                local.setdefault(of.id, None)
        scope = _Scope(self.names, self.cached, local)
        for of in nodes:
            if isinstance(of, ast.Assign) and isinstance(of.targets[0], ast.Name):
                local[of.targets[0].id] = scope.root(of.value) or local[of.targets[0].id]
        return scope

    def root(self, of: ast.expr) -> str | None:
        """Return the name of the module whose object an expression is, or is a part of."""
        while isinstance(of, ast.Attribute | ast.Subscript):
            of = of.value
        if isinstance(of, ast.Call) and isinstance(of.func, ast.Name):
            return of.func.id if of.func.id in self.cached else None
        if not isinstance(of, ast.Name):
            return None
        return self.local.get(of.id, of.id if of.id in self.names else None)


def _changed_by(function: Functions, scope: _Scope) -> Iterator[str]:
    """Yield the names of the module that a function of this scope changes, inner functions too."""
    nodes = [*ast.walk(function)]  # once: it takes longer than all that is done with them
    scope = scope.inside(nodes)
    for of in nodes:
        if isinstance(of, ast.Global):
            yield from of.names
        elif isinstance(of, Functions) and of is not function:
            yield from _changed_by(of, scope)
        else:
            yield from filter(None, map(scope.root, _objects_changed_at(of)))


def _objects_changed_at(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the object that an assignment, a deletion or a call changes."""
    if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
        yield node.value
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGING_METHODS:
        yield node.func.value
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("setattr", "delattr"):
        yield node.args[0]


def test_no_module_keeps_state_but_what_is_declared() -> None:
    package = REPOSITORY / "pbgeval"
    found = {path.relative_to(package).as_posix(): state_of(ast.parse(path.read_text())) for path in modules(package)}

    assert {path: state for path, state in found.items() if state} == PER_PROCESS


def modules(package: Path) -> list[Path]:
    return sorted(package.rglob("*.py"))

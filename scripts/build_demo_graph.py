"""Installed Python code -> a knowledge graph in PyTorch-BigGraph's format.

The standard library (without its tests) is parsed, never run: which module contains, imports and calls what. What the
names in the code refer to is decided by the code's own imports, definitions and class bases, and the builtins; a name
that cannot be followed that way is dropped, not guessed. The requirements of the installed distributions are added.

Everything is sorted, and every draw is a hash of (seed, what is drawn): one environment gives one graph.
"""

import argparse
import ast
import builtins
import hashlib
import importlib.metadata
import re
import sys
import sysconfig
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import attrs
import numpy as np
import pbg_format

SKIPPED_FOLDERS = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
HELD_OUT_FRACTION = 0.05
MIN_ENTITIES_PER_PARTITION = 250  # smaller types are not partitioned
DIMENSION = 64


class Entity(NamedTuple):
    """A node of the graph. While names are resolved, `type` may also be "instance" (of a class) or "super"."""

    type: str
    name: str


class Edge(NamedTuple):
    """lhs --verb--> rhs; the relation is the verb together with both types."""

    lhs: Entity
    verb: str
    rhs: Entity

    @property
    def relation(self) -> str:
        """The relation's name, such as `function_calls_class`."""
        return f"{self.lhs.type}_{self.verb}_{self.rhs.type}"


# relation -> (lhs type, rhs type); an edge whose relation is not here is dropped
RELATIONS = {
    f"{lhs}_{verb}_{rhs}": (lhs, rhs)
    for lhs, verb, rhs in (
        ("package", "contains", "package"),
        ("package", "contains", "module"),
        ("package", "requires", "package"),
        ("module", "contains", "class"),
        ("module", "contains", "function"),
        ("module", "imports", "module"),
        ("module", "imports", "class"),
        ("module", "imports", "function"),
        ("module", "calls", "class"),
        ("module", "calls", "function"),
        ("class", "contains", "class"),
        ("class", "contains", "function"),
        ("class", "subclasses", "class"),
        ("function", "contains", "class"),
        ("function", "contains", "function"),
        ("function", "calls", "class"),
        ("function", "calls", "function"),
        ("function", "raises", "class"),
        ("function", "catches", "class"),
        ("function", "decorated_by", "class"),
        ("function", "decorated_by", "function"),
        ("function", "overrides", "function"),
    )
}
ENTITY_TYPES = ("package", "module", "class", "function")


# --- reading: source files -> scopes (what a name is bound to) and uses (what is to be resolved) ---


class Imported(NamedTuple):
    """A module, or with `name` something in it."""

    module: str
    name: str | None


Binding = Entity | Imported | None  # None: bound to a value that is not followed, such as a variable


@attrs.define(eq=False)
class Scope:
    """What the names in a module, class body or function body are bound to."""

    entity: Entity
    parent: "Scope | None" = None
    bindings: dict[str, Binding] = attrs.field(factory=dict)
    star_imports: list[str] = attrs.field(factory=list)
    bases: list[ast.expr] = attrs.field(factory=list)  # of a class
    outer_names: set[str] = attrs.field(factory=set)  # declared global or nonlocal

    def bind(self, name: str, binding: Binding) -> None:
        """Bind a name; definitions win over imports, imports over variables, the first import over later ones."""
        old = self.bindings.get(name)
        is_stronger = isinstance(binding, Entity) or (isinstance(binding, Imported) and old is None)
        if name not in self.outer_names and (is_stronger or name not in self.bindings):
            self.bindings[name] = binding

    def name_of(self, inner: str) -> str:
        """The qualified name of what is defined here."""
        return f"{self.entity.name}.{'<locals>.' if self.entity.type == 'function' else ''}{inner}"


class Use(NamedTuple):
    """`entity` does `verb` to whatever `target` refers to, seen from `scope`."""

    entity: Entity
    verb: str
    target: ast.expr | Imported
    scope: Scope


@attrs.define(eq=False)
class Code:
    """All that was read from source files."""

    modules: dict[str, Scope] = attrs.field(factory=dict)
    classes: dict[str, Scope] = attrs.field(factory=dict)
    edges: set[Edge] = attrs.field(factory=set)  # those that need no resolving
    uses: list[Use] = attrs.field(factory=list)
    num_skipped_files: int = 0


class ModuleReader(ast.NodeVisitor):
    """One syntax tree -> scopes, uses and `contains` edges, added to a Code."""

    def __init__(self, code: Code, module: str, is_package: bool) -> None:
        self.code = code
        self.module = Entity("module", module)
        self.package = module if is_package else module.rpartition(".")[0]
        self.scope = Scope(self.module)
        code.modules[module] = self.scope

    def _use(self, verb: str, target: ast.expr | Imported, entity: Entity | None = None) -> None:
        self.code.uses.append(Use(entity or self.scope.entity, verb, target, self.scope))

    def _define(self, entity_type: str, name: str) -> Entity:
        entity = Entity(entity_type, self.scope.name_of(name))
        self.scope.bind(name, entity)
        self.code.edges.add(Edge(self.scope.entity, "contains", entity))
        return entity

    def _visit_all(self, nodes: Iterable[ast.AST | None]) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)

    def _visit_inside(self, scope: Scope, body: Sequence[ast.stmt]) -> None:
        outer, self.scope = self.scope, scope
        self._visit_all(body)
        self.scope = outer

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._use("imports", Imported(alias.name, None), self.module)
            bound = alias.name if alias.asname else alias.name.partition(".")[0]
            self.scope.bind(alias.asname or bound, Imported(bound, None))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        parents = self.package.split(".")
        base = ".".join(parents[: len(parents) - node.level + 1]) if node.level else ""
        module = ".".join(part for part in (base, node.module) if part)
        self._use("imports", Imported(module, None), self.module)
        for alias in node.names:
            if alias.name == "*":
                self.scope.star_imports.append(module)
            else:
                self._use("imports", Imported(module, alias.name), self.module)
                self.scope.bind(alias.asname or alias.name, Imported(module, alias.name))

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        entity = self._define("class", node.name)
        for base in node.bases:
            self._use("subclasses", base, entity)
        self._visit_all([*node.decorator_list, *node.bases, *(keyword.value for keyword in node.keywords)])
        scope = Scope(entity, self.scope, bases=node.bases)
        self.code.classes.setdefault(entity.name, scope)
        self._visit_inside(scope, node.body)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        entity = self._define("function", node.name)
        for decorator in node.decorator_list:
            self._use("decorated_by", decorator.func if isinstance(decorator, ast.Call) else decorator, entity)
            self.generic_visit(decorator)
        self._visit_all([*node.args.defaults, *node.args.kw_defaults])
        scope = Scope(entity, self.scope)
        self._bind_parameters(scope, node)
        self._visit_inside(scope, node.body)

    visit_AsyncFunctionDef = visit_FunctionDef

    def _bind_parameters(self, scope: Scope, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        names = [name.arg for name in ast.walk(node.args) if isinstance(name, ast.arg)]
        positional = [*node.args.posonlyargs, *node.args.args]
        decorators = {decorator.id for decorator in node.decorator_list if isinstance(decorator, ast.Name)}
        if self.scope.entity.type == "class" and positional and "staticmethod" not in decorators:
            takes_class = "classmethod" in decorators or node.name in {"__new__", "__init_subclass__"}
            owner = self.scope.entity
            scope.bind(positional[0].arg, owner if takes_class else Entity("instance", owner.name))
        for name in names:
            scope.bind(name, None)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        for argument in ast.walk(node.args):
            if isinstance(argument, ast.arg):
                self.scope.bind(argument.arg, None)
        self.generic_visit(node)

    def visit_Global(self, node: ast.Global | ast.Nonlocal) -> None:
        self.scope.outer_names.update(node.names)

    visit_Nonlocal = visit_Global

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Store):
            self.scope.bind(node.id, None)

    def visit_Call(self, node: ast.Call) -> None:
        self._use("calls", node.func)
        self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        if isinstance(node.exc, ast.Call):
            self._use("raises", node.exc.func)
            self.generic_visit(node.exc)  # its arguments: making what is raised is no call of its own
        elif node.exc is not None:
            self._use("raises", node.exc)
        self._visit_all([node.cause])

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        for expression in caught:
            if expression is not None:
                self._use("catches", expression)
        if node.name:
            self.scope.bind(node.name, None)
        self._visit_all(node.body)


def read_code(root: Path) -> Code:
    """Read every importable source file below `root`; files that do not parse or decode are counted and skipped."""
    code = Code()
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if SKIPPED_FOLDERS.intersection(parts[:-1]) or not all(part.isidentifier() for part in parts):
            continue
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        if not name:
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # such as old escape sequences in the code that is read
                tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError, RecursionError):
            code.num_skipped_files += 1
            continue
        ModuleReader(code, name, is_package).visit(tree)
        module, parent = Entity("module", name), name.rpartition(".")[0]
        if is_package:
            code.edges.add(Edge(Entity("package", name), "contains", module))
        if parent:
            child = Entity("package", name) if is_package else module
            code.edges.add(Edge(Entity("package", parent), "contains", child))
    return code


# --- resolving: uses -> edges ---


def builtin_scope() -> Scope:
    """The public classes and functions that every module sees without an import."""
    scope = Scope(Entity("module", "builtins"))
    for name in sorted(vars(builtins)):
        value = getattr(builtins, name)
        if name.startswith("_") or getattr(value, "__module__", None) != "builtins":
            continue
        if isinstance(value, type):
            scope.bind(name, Entity("class", f"builtins.{value.__name__}"))
        elif callable(value):
            scope.bind(name, Entity("function", f"builtins.{name}"))
    return scope


class Resolver:
    """Follows names through scopes, imports, attributes and class bases to the entity that they refer to."""

    def __init__(self, code: Code, extra_modules: Iterable[str]) -> None:
        self.code = code
        self.builtins = builtin_scope()
        self.modules = {name: Scope(Entity("module", name)) for name in extra_modules}
        self.modules.update({"builtins": self.builtins, **code.modules})

    def edges(self) -> set[Edge]:
        """All edges of the code, the builtins' own included."""
        found = set(self.code.edges)
        for use in self.code.uses:
            target = self.resolve(use.target, use.scope)
            if target is not None and target != use.entity:
                found.add(Edge(use.entity, use.verb, target))
        for name, scope in self.code.classes.items():
            for member in scope.bindings:
                overridden = self._class_member(name, member, include_self=False)
                if overridden is not None:
                    found.add(Edge(Entity("function", scope.name_of(member)), "overrides", overridden))
        builtin_entities = {edge.rhs for edge in found if edge.rhs in self.builtins.bindings.values()}
        found |= {Edge(self.builtins.entity, "contains", entity) for entity in builtin_entities}
        return {edge for edge in found if edge.relation in RELATIONS}

    def resolve(self, target: ast.expr | Imported | None, scope: Scope) -> Entity | None:
        """The entity that an expression or import refers to, None where that is not known."""
        if isinstance(target, Imported):
            return self._follow(target, frozenset())
        if isinstance(target, ast.Name):
            return self._look_up(target.id, scope)
        if isinstance(target, ast.Attribute):
            return self._member(self.resolve(target.value, scope), target.attr)
        if isinstance(target, ast.Call):
            return self._result_of(target, scope)
        return None

    def _result_of(self, call: ast.Call, scope: Scope) -> Entity | None:
        if isinstance(call.func, ast.Name) and call.func.id == "super" and not call.args:
            inner: Scope | None = scope
            while inner is not None and inner.entity.type != "class":
                inner = inner.parent
            return Entity("super", inner.entity.name) if inner is not None else None
        called = self.resolve(call.func, scope)
        return Entity("instance", called.name) if called is not None and called.type == "class" else None

    def _look_up(self, name: str, scope: Scope) -> Entity | None:
        visible: Scope | None = scope
        while visible is not None:
            if visible.entity.type != "class" or visible is scope:  # a method does not see its class's names
                if name in visible.bindings:
                    return self._follow(visible.bindings[name], frozenset())
                for module in visible.star_imports:
                    found = self._module_member(module, name, frozenset())
                    if found is not None:
                        return found
            visible = visible.parent
        return self._follow(self.builtins.bindings.get(name), frozenset())

    def _follow(self, binding: Binding, seen: frozenset[Imported]) -> Entity | None:
        if not isinstance(binding, Imported):
            return binding
        if binding.name is not None:
            return self._module_member(binding.module, binding.name, seen)
        return Entity("module", binding.module) if binding.module in self.modules else None

    def _module_member(self, module: str, name: str, seen: frozenset[Imported]) -> Entity | None:
        step = Imported(module, name)
        if module not in self.modules or step in seen:
            return None
        scope, found = self.modules[module], None
        if name in scope.bindings:
            found = self._follow(scope.bindings[name], seen | {step})
        elif not name.startswith("_"):
            via_star = (self._module_member(star, name, seen | {step}) for star in scope.star_imports)
            found = next((entity for entity in via_star if entity is not None), None)
        return found or self._follow(Imported(f"{module}.{name}", None), seen)

    def _member(self, owner: Entity | None, name: str) -> Entity | None:
        if owner is None or owner.type == "function":
            return None
        if owner.type == "module":
            return self._module_member(owner.name, name, frozenset())
        return self._class_member(owner.name, name, include_self=owner.type != "super")

    def _class_member(
        self, class_name: str, name: str, include_self: bool, seen: frozenset[str] = frozenset()
    ) -> Entity | None:
        scope = self.code.classes.get(class_name)
        if scope is None or class_name in seen:
            return None
        if include_self and name in scope.bindings:
            return self._follow(scope.bindings[name], frozenset())
        for expression in scope.bases:
            base = self.resolve(expression, scope.parent or scope)
            if base is not None and base.type == "class":
                found = self._class_member(base.name, name, True, seen | {class_name})
                if found is not None:
                    return found
        return None


def distribution_edges() -> set[Edge]:
    """Which installed distribution requires which (extras left out); names as on the package index."""

    def package(name: str) -> Entity:
        return Entity("package", "distribution:" + re.sub(r"[-_.]+", "-", name).lower())

    distributions = [found for found in importlib.metadata.distributions() if found.metadata["Name"]]
    installed = {package(found.metadata["Name"]) for found in distributions}
    edges = set()
    for found in distributions:
        for requirement in found.requires or []:
            name = re.match(r"[A-Za-z0-9._-]+", requirement)
            if name and "extra ==" not in requirement and package(name[0]) in installed:
                edges.add(Edge(package(found.metadata["Name"]), "requires", package(name[0])))
    return edges


# --- splitting and writing: edges -> folders ---


def digest(seed: int, purpose: str, *names: str) -> bytes:
    """A random number that depends on nothing but its arguments."""
    return hashlib.blake2b("\0".join((str(seed), purpose, *names)).encode(), digest_size=8).digest()


def shuffled_edges(edges: Iterable[Edge], seed: int, purpose: str) -> list[Edge]:
    """The edges in an order drawn by the seed."""
    return sorted(edges, key=lambda edge: (digest(seed, purpose, edge.lhs.name, edge.relation, edge.rhs.name), edge))


def split_edges(edges: Sequence[Edge], seed: int) -> tuple[list[Edge], list[Edge]]:
    """Hold edges out at random, save those that training needs to see an entity or a relation at all."""
    num_left: Counter[Entity | str] = Counter()
    for edge in edges:
        num_left.update((edge.lhs, edge.rhs, edge.relation))
    threshold = int(HELD_OUT_FRACTION * 2**64)
    train, held_out = [], []
    for edge in edges:
        keys = (edge.lhs, edge.rhs, edge.relation)
        is_drawn = int.from_bytes(digest(seed, "hold out", edge.lhs.name, edge.relation, edge.rhs.name)) < threshold
        if is_drawn and all(num_left[key] > keys.count(key) for key in keys):
            num_left.subtract(keys)
            held_out.append(edge)
        else:
            train.append(edge)
    return train, held_out


@attrs.frozen
class Layout:
    """Where every entity lies: names[type][partition][row], and (partition, row) of each entity."""

    names: dict[str, list[list[str]]]
    places: dict[Entity, tuple[int, int]]

    @staticmethod
    def draw(edges: Iterable[Edge], num_partitions: int, min_entities: int, seed: int) -> "Layout":
        """Deal the entities of the edges out to partitions; a small type gets one partition."""
        entities = {entity for edge in edges for entity in (edge.lhs, edge.rhs)}
        names: dict[str, list[list[str]]] = {}
        places: dict[Entity, tuple[int, int]] = {}
        for entity_type in ENTITY_TYPES:
            members = sorted(entity for entity in entities if entity.type == entity_type)
            members.sort(key=lambda entity: digest(seed, "place", *entity))
            parts = num_partitions if len(members) >= num_partitions * min_entities else 1
            names[entity_type] = [[entity.name for entity in members[part::parts]] for part in range(parts)]
            places.update({entity: (index % parts, index // parts) for index, entity in enumerate(members)})
        return Layout({entity_type: parts for entity_type, parts in names.items() if parts[0]}, places)

    def buckets(self, edges: Iterable[Edge], relations: Sequence[str]) -> dict[pbg_format.Bucket, pbg_format.Edges]:
        """The edges as rows (lhs, rel, rhs) of their buckets, in the order given."""
        rows: dict[pbg_format.Bucket, list[tuple[int, int, int]]] = {}
        for edge in edges:
            (lhs_partition, lhs), (rhs_partition, rhs) = self.places[edge.lhs], self.places[edge.rhs]
            bucket = rows.setdefault((lhs_partition, rhs_partition), [])
            bucket.append((lhs, relations.index(edge.relation), rhs))
        return {bucket: np.array(rows[bucket], dtype=np.int64) for bucket in sorted(rows)}


CONFIG_TEXT = '''\
"""How well does the demo checkpoint rank the held-out edges? (Paths are relative to this file's folder.)"""

from pbgeval import EntitySchema, EvalConfig, RelationSchema


def get_config() -> EvalConfig:
    return EvalConfig(
        entity_path="entity",
        edge_paths=["edges_valid"],
        checkpoint_path="checkpoint",
        entities={{
{entities}
        }},
        relations=[
{relations}
        ],
        dimension={dimension},
        comparator="dot",
        global_emb=False,
        # Every edge asks two questions (who is the lhs? who is the rhs?); the true answer is ranked
        # among 1000 entities drawn from those of its type in its partition.
        num_batch_negs=0,
        num_uniform_negs=1000,
        hits_at=[1, 3, 10, 50],
    )
'''


def config_text(layout: Layout, relations: Sequence[str]) -> str:
    """The complete evaluation config of the graph."""
    entity_lines = [
        f'            "{entity_type}": EntitySchema(num_partitions={len(parts)}),'
        for entity_type, parts in layout.names.items()
    ]
    relation_lines = [
        f'            RelationSchema(name="{name}", lhs="{RELATIONS[name][0]}", rhs="{RELATIONS[name][1]}", '
        'operator="complex_diagonal"),'
        for name in relations
    ]
    return CONFIG_TEXT.format(
        entities="\n".join(entity_lines), relations="\n".join(relation_lines), dimension=DIMENSION
    )


def write_graph(folder: Path, edges: Sequence[Edge], num_partitions: int, min_entities: int, seed: int) -> None:
    """Split the edges and write entities, both edge folders, the schema (graph.json) and the config (eval.py)."""
    edges = shuffled_edges(edges, seed, "order")
    train, held_out = split_edges(edges, seed)
    layout = Layout.draw(edges, num_partitions, min_entities, seed)
    num_edges = Counter(edge.relation for edge in edges)
    relations = [name for name in RELATIONS if name in num_edges]
    pbg_format.write_entities(folder / "entity", layout.names, relations)
    pbg_format.write_edges(folder / "edges_train", layout.buckets(train, relations))
    pbg_format.write_edges(folder / "edges_valid", layout.buckets(held_out, relations))
    schema = {
        "dimension": DIMENSION,
        "entities": {name: [len(part) for part in parts] for name, parts in layout.names.items()},
        "relations": [
            {"name": name, "lhs": RELATIONS[name][0], "rhs": RELATIONS[name][1], "num_edges": num_edges[name]}
            for name in relations
        ],
    }
    (folder / "eval.py").write_text(config_text(layout, relations), encoding="utf-8")
    pbg_format.write_json(folder / "graph.json", schema)
    for name, parts in layout.names.items():
        print(f"  {sum(len(part) for part in parts):7d} entities of type {name} in {len(parts)} partition(s)")
    for name in relations:
        print(f"  {num_edges[name]:7d} edges {name}")
    print(f"  {len(train):7d} edges to train on, {len(held_out)} held out")


def write_text(folder: Path, edges: Sequence[Edge], seed: int) -> None:
    """Split the edges as `write_graph` does; write them by name: train.tsv, valid.tsv, and types.tsv of relations."""
    edges = shuffled_edges(edges, seed, "order")
    used = {edge.relation for edge in edges}
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in zip(("train", "valid"), split_edges(edges, seed), strict=True):
        lines = (f"{edge.lhs.name}\t{edge.relation}\t{edge.rhs.name}\n" for edge in part)
        (folder / f"{name}.tsv").write_text("".join(lines), encoding="utf-8")
        print(f"  {len(part):7d} edges in {name}.tsv")
    types = [f"{name}\t{lhs}\t{rhs}\n" for name, (lhs, rhs) in RELATIONS.items() if name in used]
    (folder / "types.tsv").write_text("".join(types), encoding="utf-8")
    print(f"  {len(types):7d} relations in types.tsv")


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Write the Python installation's own code as a knowledge graph.")
    parser.add_argument("--output", type=Path, required=True, help="folder to write")
    parser.add_argument("--source", type=Path, help="folder of Python code (default: the standard library)")
    parser.add_argument("--partitions", type=int, default=4, help="partitions of each large entity type")
    parser.add_argument("--max-edges", type=int, default=200_000, help="keep at most so many edges, drawn by the seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--as-text", action="store_true", help="write train.tsv, valid.tsv and types.tsv instead")
    return parser.parse_args()


def main() -> None:
    """Read, resolve, reduce, write."""
    arguments = parse_arguments()
    start = time.perf_counter()
    code = read_code(arguments.source or Path(sysconfig.get_path("stdlib")))
    edges = Resolver(code, sys.stdlib_module_names).edges() | distribution_edges()
    print(f"{len(code.modules)} source files read, {code.num_skipped_files} skipped, {len(edges)} edges found")
    if len(edges) > arguments.max_edges:
        edges = set(shuffled_edges(edges, arguments.seed, "reduce")[: arguments.max_edges])
        print(f"reduced to {len(edges)} edges")
    if arguments.as_text:
        write_text(arguments.output, sorted(edges), arguments.seed)
    else:
        write_graph(arguments.output, sorted(edges), arguments.partitions, MIN_ENTITIES_PER_PARTITION, arguments.seed)
    print(f"graph written to {arguments.output} in {time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
    main()

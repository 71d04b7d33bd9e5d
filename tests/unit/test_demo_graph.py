"""scripts/build_demo_graph.py: what is read from code, and how the graph is written."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from tests.kit.commands import run_main

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
build_demo_graph = importlib.import_module("build_demo_graph")
pbg_format = importlib.import_module("pbg_format")
train_demo = importlib.import_module("train_demo")
Edge, Entity = build_demo_graph.Edge, build_demo_graph.Entity

SOURCE = {
    "shop/__init__.py": "from shop.shapes import Square\n",
    "shop/shapes.py": """
from math import sqrt

class ShapeError(ValueError):
    pass

class Shape:
    def area(self):
        raise NotImplementedError
    def describe(self):
        return str(self.area())

class Square(Shape):
    def __init__(self, side):
        if side < 0:
            raise ShapeError(len(side))
        self.side = sqrt(side)
    def area(self):
        def times():
            return super().describe()
        return times()
    @classmethod
    def unit(cls):
        return cls(1)
""",
    "shop/tools.py": """
import shop.shapes as forms
from . import shapes
from .shapes import *
from shop import Square as Box

def measure(shape, len, sum=max(1, 2)):
    len(shape)
    shape.area()
    return shapes.Square(1).area() + forms.Shape().area()

def safe():
    try:
        measure(Box(2), 3)
    except (ShapeError, OSError) as error:
        unknown(error)
        raise

measure = safe
""",
    "shop/tests/test_shapes.py": "import shop\n",
    "test/support.py": "import shop\n",
    "not-a-name.py": "import shop\n",
    "broken.py": "def (:\n",
    "undecodable.py": "x = '\udcff'\n",
}

EXPECTED = """
package:shop contains module:shop
package:shop contains module:shop.shapes
package:shop contains module:shop.tools
module:shop imports module:shop.shapes
module:shop imports class:shop.shapes.Square
module:shop.shapes imports module:math
module:shop.shapes contains class:shop.shapes.ShapeError
module:shop.shapes contains class:shop.shapes.Shape
module:shop.shapes contains class:shop.shapes.Square
class:shop.shapes.ShapeError subclasses class:builtins.ValueError
class:shop.shapes.Square subclasses class:shop.shapes.Shape
class:shop.shapes.Shape contains function:shop.shapes.Shape.area
class:shop.shapes.Shape contains function:shop.shapes.Shape.describe
class:shop.shapes.Square contains function:shop.shapes.Square.__init__
class:shop.shapes.Square contains function:shop.shapes.Square.area
class:shop.shapes.Square contains function:shop.shapes.Square.unit
function:shop.shapes.Shape.area raises class:builtins.NotImplementedError
function:shop.shapes.Shape.describe calls class:builtins.str
function:shop.shapes.Shape.describe calls function:shop.shapes.Shape.area
function:shop.shapes.Square.__init__ raises class:shop.shapes.ShapeError
function:shop.shapes.Square.__init__ calls function:builtins.len
function:shop.shapes.Square.area overrides function:shop.shapes.Shape.area
function:shop.shapes.Square.area contains function:shop.shapes.Square.area.<locals>.times
function:shop.shapes.Square.area calls function:shop.shapes.Square.area.<locals>.times
function:shop.shapes.Square.area.<locals>.times calls function:shop.shapes.Shape.describe
function:shop.shapes.Square.area.<locals>.times calls class:builtins.super
function:shop.shapes.Square.unit decorated_by class:builtins.classmethod
function:shop.shapes.Square.unit calls class:shop.shapes.Square
module:shop.tools imports module:shop
module:shop.tools imports module:shop.shapes
module:shop.tools imports class:shop.shapes.Square
module:shop.tools calls function:builtins.max
module:shop.tools contains function:shop.tools.measure
module:shop.tools contains function:shop.tools.safe
function:shop.tools.measure calls class:shop.shapes.Square
function:shop.tools.measure calls class:shop.shapes.Shape
function:shop.tools.measure calls function:shop.shapes.Square.area
function:shop.tools.measure calls function:shop.shapes.Shape.area
function:shop.tools.safe calls function:shop.tools.measure
function:shop.tools.safe calls class:shop.shapes.Square
function:shop.tools.safe catches class:shop.shapes.ShapeError
function:shop.tools.safe catches class:builtins.OSError
module:builtins contains class:builtins.ValueError
module:builtins contains class:builtins.NotImplementedError
module:builtins contains class:builtins.OSError
module:builtins contains class:builtins.classmethod
module:builtins contains class:builtins.str
module:builtins contains class:builtins.super
module:builtins contains function:builtins.len
module:builtins contains function:builtins.max
"""


def write_source(root: Path, paths: list[str]) -> None:
    for name in paths:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(SOURCE[name], encoding="utf-8", errors="surrogateescape")


def random_edges(num_edges: int) -> list:
    """Edges between 200 functions, and some to 7 classes."""
    rng = np.random.default_rng(0)
    edges = set()
    for index, rhs in enumerate(rng.integers(0, 200, num_edges).tolist()):
        lhs = index % 200
        edges.add(Edge(Entity("function", f"f{lhs}"), "calls", Entity("function", f"f{rhs}")))
        edges.add(Edge(Entity("function", f"f{rhs}"), "raises", Entity("class", f"c{lhs % 7}")))
    return sorted(edges)


def read_named_edges(folder: Path, edge_folder: str) -> list:
    """The edges of a written graph, with the names that the entity files give."""
    schema = json.loads((folder / "graph.json").read_text())
    found = []
    for (lhs_partition, rhs_partition), rows in pbg_format.read_edges(folder / edge_folder):
        for lhs, rel, rhs in rows.tolist():
            relation = schema["relations"][rel]
            verb = relation["name"].removeprefix(f"{relation['lhs']}_").removesuffix(f"_{relation['rhs']}")
            lhs_names = folder / "entity" / f"entity_names_{relation['lhs']}_{lhs_partition}.json"
            rhs_names = folder / "entity" / f"entity_names_{relation['rhs']}_{rhs_partition}.json"
            lhs_entity = Entity(relation["lhs"], json.loads(lhs_names.read_text())[lhs])
            found.append(Edge(lhs_entity, verb, Entity(relation["rhs"], json.loads(rhs_names.read_text())[rhs])))
    return found


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    folder = tmp_path_factory.mktemp("graph")
    build_demo_graph.write_graph(folder, random_edges(400), num_partitions=2, min_entities=50, seed=0)
    return folder


def test_names_in_code_are_followed_and_what_cannot_be_followed_is_dropped(tmp_path):
    write_source(tmp_path, list(SOURCE))

    code = build_demo_graph.read_code(tmp_path)
    edges = build_demo_graph.Resolver(code, ["math"]).edges()

    found = {f"{edge.lhs.type}:{edge.lhs.name} {edge.verb} {edge.rhs.type}:{edge.rhs.name}" for edge in edges}
    assert set(EXPECTED.strip().splitlines()) == found
    assert code.num_skipped_files == 2


def test_imports_that_go_in_a_circle_end(tmp_path):
    (tmp_path / "a.py").write_text("from b import *\nfrom b import x\nx()\n")
    (tmp_path / "b.py").write_text(
        "from a import *\nfrom a import x\nclass C(C):\n    def f(self):\n        self.g()\n"
    )

    edges = build_demo_graph.Resolver(build_demo_graph.read_code(tmp_path), []).edges()

    imports = {(edge.lhs.name, edge.rhs.name) for edge in edges if edge.verb == "imports"}
    assert imports == {("a", "b"), ("b", "a")}


def test_the_graph_depends_neither_on_hash_seed_nor_on_directory_order(tmp_path):
    contents = []
    for hash_seed, paths in (("1", list(SOURCE)), ("2", list(reversed(SOURCE)))):
        source, output = tmp_path / f"source{hash_seed}", tmp_path / f"graph{hash_seed}"
        write_source(source, paths)
        command = [sys.executable, SCRIPTS / "build_demo_graph.py", "--source", source, "--output", output]
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        subprocess.run([*command, "--max-edges", "40"], env=environment, check=True, capture_output=True)
        files = sorted(path for path in output.rglob("*") if path.is_file())
        contents.append({str(path.relative_to(output)): path.read_bytes() for path in files})

    assert contents[0] == contents[1]
    assert {"eval.py", "graph.json", "edges_train/edges_0_0.h5"} <= contents[0].keys()
    assert sum(relation["num_edges"] for relation in json.loads(contents[0]["graph.json"])["relations"]) == 40


def test_every_edge_is_either_trained_on_or_held_out(graph):
    train, held_out = read_named_edges(graph, "edges_train"), read_named_edges(graph, "edges_valid")

    assert random_edges(400) == sorted(train + held_out)
    assert 0 < len(held_out) < 0.1 * len(train)


def test_the_graph_as_text_has_the_edges_of_its_files_and_can_be_imported_and_trained_on(graph, tmp_path):
    build_demo_graph.write_text(tmp_path, random_edges(400), seed=0)
    for name in ("train", "valid"):
        expected = sorted(
            f"{edge.lhs.name}\t{edge.relation}\t{edge.rhs.name}" for edge in read_named_edges(graph, f"edges_{name}")
        )
        assert expected == sorted((tmp_path / f"{name}.tsv").read_text(encoding="utf-8").splitlines())

    flags = ("--types", "types.tsv", "--partitions", "function=2", "--edges", "edges_train=train.tsv", "--quiet")
    done = run_main("import-graph", "--output", "imported", *flags, cwd=tmp_path)

    assert (0, "") == (done.status, done.err)
    ours, imported = train_demo.load_graph(graph), train_demo.load_graph(tmp_path / "imported", tmp_path / "types.tsv")
    assert ours.schema["entities"] == imported.schema["entities"]
    assert [of["name"] for of in ours.schema["relations"]] == [of["name"] for of in imported.schema["relations"]]
    assert (ours.edges_E3.shape, ours.edges_E3.dtype) == (imported.edges_E3.shape, imported.edges_E3.dtype)


def test_training_sees_every_entity_and_relation_of_the_held_out_edges():
    edges = random_edges(150)

    train, held_out = build_demo_graph.split_edges(edges, seed=3)

    seen = {key for edge in train for key in (edge.lhs, edge.rhs, edge.relation)}
    assert held_out
    assert {key for edge in held_out for key in (edge.lhs, edge.rhs, edge.relation)} <= seen


def test_files_are_those_of_torchbiggraph(graph):
    entity = graph / "entity"
    counts = {path.name: path.read_text() for path in entity.glob("entity_count_*")}

    assert counts == {
        "entity_count_class_0.txt": "7\n",
        "entity_count_function_0.txt": "100\n",
        "entity_count_function_1.txt": "100\n",
    }
    for name, count in counts.items():
        names = json.loads((entity / name.replace("count", "names").replace("txt", "json")).read_text())
        assert int(count) == len(names)
    relations = json.loads((entity / "dynamic_rel_names.json").read_text())
    assert relations == ["function_calls_function", "function_raises_class"]
    assert {path.name for path in (graph / "edges_train").iterdir()} == {
        f"edges_{lhs}_{rhs}.h5" for lhs in (0, 1) for rhs in (0, 1)
    }
    with h5py.File(graph / "edges_train" / "edges_1_0.h5") as file:
        assert file.attrs["format_version"] == 1
        assert file.attrs["format_version"].dtype == np.int64
        assert {name: (dataset.dtype, dataset.ndim) for name, dataset in file.items()} == dict.fromkeys(
            ("lhs", "rel", "rhs"), (np.dtype(np.int64), 1)
        )
    with h5py.File(graph / "edges_train" / "edges_0_1.h5") as file:
        assert set(file["rel"][:]) == {0}  # raises: its class side is unpartitioned, hence in partition 0


def test_a_bucket_without_edges_has_no_file_and_old_files_go(tmp_path):
    one_edge = np.zeros((1, 3), dtype=np.int64)

    pbg_format.write_edges(tmp_path, {(1, 1): one_edge})
    pbg_format.write_edges(tmp_path, {(0, 0): one_edge, (0, 1): one_edge[:0]})

    assert [path.name for path in tmp_path.iterdir()] == ["edges_0_0.h5"]


def test_the_config_names_the_files_that_were_written(graph):
    namespace = {}

    exec(compile((graph / "eval.py").read_text(), "eval.py", "exec"), namespace)
    config = namespace["get_config"]()

    num_partitions = {name: entity.num_partitions for name, entity in config.entities.items()}
    assert num_partitions == {"class": 1, "function": 2}
    names = json.loads((graph / "entity" / "dynamic_rel_names.json").read_text())
    assert names == [relation.name for relation in config.relations]
    assert all((graph / folder).is_dir() for folder in (config.entity_path, *config.edge_paths))

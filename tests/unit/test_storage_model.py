import h5py
import numpy as np
import pytest
import torch

from pbgeval.errors import DataError
from pbgeval.notation import ENDS, Side
from pbgeval.storage.checkpoint_paths import model_path
from pbgeval.storage.model import global_embedding, operator_parameters, read_model_parameters
from tests.kit.pbg_files import write_model
from tests.kit.refusals import fault_of, faults_of

D = 4
VECTOR = np.arange(D, dtype=np.float32) - 1.5
MATRIX = np.arange(D * D, dtype=np.float32).reshape(D, D)


def as_lists(parameters):
    return {name: value.tolist() for name, value in parameters.items()}


@pytest.mark.parametrize("with_keys", [True, False])
def test_static_parameters_are_filed_by_relation_and_side_and_entity_types_may_have_any_name(tmp_path, with_keys):
    operators = {
        (1, Side.RHS): {"diagonal": VECTOR},
        (2, Side.RHS): {"translation": VECTOR + 1},
        (10, Side.RHS): {"linear_transformation": MATRIX, "translation": VECTOR},
        (3, Side.RHS): {"real": VECTOR[:2], "imag": VECTOR[2:]},
    }
    types = ("user", "item", "a/b", "ü ö", "x.y", "emb_x", "entities", "a/global_embedding")
    vectors = {name: VECTOR * number for number, name in enumerate(types)}
    path = write_model(tmp_path, operators, vectors, version=3, with_keys=with_keys)
    model = read_model_parameters(tmp_path, 3)

    assert path == model.path == model_path(tmp_path, 3)
    assert {key: as_lists(of) for key, of in operators.items()} == {
        key: as_lists(of) for key, of in model.operators.items()
    }
    assert as_lists(vectors) == as_lists(model.global_embeddings)


@pytest.mark.parametrize("with_keys", [True, False])
def test_dynamic_names_become_singular_and_keep_the_relations(tmp_path, with_keys):
    vectors, matrices = np.stack([VECTOR] * 3), np.stack([MATRIX, -MATRIX, MATRIX + 1])
    parameters = {
        "diagonal": vectors,
        "translation": vectors,
        "linear_transformation": matrices,
        "real": vectors[:, :2],
    }
    write_model(tmp_path, {(0, side): parameters for side in ENDS}, version=0, dynamic=True, with_keys=with_keys)

    operators = read_model_parameters(tmp_path, 0).operators
    assert {key: as_lists(of) for key, of in operators.items()} == {(0, side): as_lists(parameters) for side in ENDS}


@pytest.mark.parametrize("dynamic", [False, True])
def test_an_old_rotation_is_a_transposed_linear_transformation(tmp_path, dynamic):
    matrix = np.stack([MATRIX, -MATRIX]) if dynamic else MATRIX
    write_model(tmp_path, {(0, Side.RHS): {"rotation": matrix}}, version=1, dynamic=dynamic)
    found = read_model_parameters(tmp_path, 1).operators[0, Side.RHS]["linear_transformation"]

    assert np.swapaxes(matrix, -1, -2).tolist() == found.tolist()
    assert found.is_contiguous()


def test_the_key_attribute_wins_over_the_path(tmp_path):
    path = write_model(tmp_path, {(0, Side.RHS): {"diagonal": VECTOR}}, version=3)
    with h5py.File(path, "r+") as file:
        file["model/relations/0/operator/rhs/diagonal"].attrs["state_dict_key"] = np.bytes_("lhs_operators.7.diagonal")

    assert {(7, Side.LHS)} == set(read_model_parameters(tmp_path, 3).operators)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        *(
            (name, None)
            for name in (
                "model/bias",
                "model/relations/0/operator/rhs/angle",
                "model/relations/x/operator/rhs/real",
                "model/entities/a/emb",
            )
        ),
        ("model/relations/0/operator/rhs/real", "other.0.diagonal"),
    ],
)
def test_an_unknown_dataset_or_key_under_model_is_named(tmp_path, name, key):
    path = write_model(tmp_path, {(0, Side.RHS): {"diagonal": VECTOR}}, version=3)
    with h5py.File(path, "r+") as file:
        file[name] = VECTOR
        if key is not None:
            file[name].attrs["state_dict_key"] = key

    said = f" (state_dict_key {key})" if key else ""
    assert f"{path}: dataset {name}{said}: expected" in fault_of(lambda: read_model_parameters(tmp_path, 3))


def test_one_parameter_under_two_names_is_refused(tmp_path):
    write_model(tmp_path, {(0, Side.RHS): {"rotation": MATRIX, "linear_transformation": MATRIX}}, version=3)

    assert "expected linear_transformation once" in fault_of(lambda: read_model_parameters(tmp_path, 3))


def test_parameters_that_are_not_finite_are_all_named_with_their_places(tmp_path):
    matrix, vector = MATRIX.copy(), VECTOR.copy()
    matrix[1, 2], matrix[3, 3], vector[0] = np.nan, -np.inf, np.inf
    operators = {(2, Side.RHS): {"linear_transformation": matrix, "translation": VECTOR}}
    path = write_model(tmp_path, operators, {"user": vector}, version=3)
    lines = faults_of(lambda: read_model_parameters(tmp_path, 3), DataError)

    assert sorted(lines) == [
        f"{path}: dataset model/entities/user/global_embedding: expected finite numbers, found 1 NaN or infinite,"
        " first at (0,); check whether training diverged",
        f"{path}: dataset model/relations/2/operator/rhs/linear_transformation: expected finite numbers,"
        " found 2 NaN or infinite, first at (1, 2), (3, 3); check whether training diverged",
    ]


DIAGONAL = "model/relations/0/operator/rhs/diagonal"


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        (DIAGONAL, np.array([1e300, 1.0]), "first at (0,)"),  # not finite in float32
        ("embeddings", MATRIX, "expected a group model, found embeddings"),
        (DIAGONAL, np.arange(4), "expected floating-point numbers, found int64"),
        *((DIAGONAL, VECTOR.astype(dtype), None) for dtype in ("<f8", ">f4", "<f2")),
    ],
)
def test_parameters_come_as_float32_and_a_file_that_is_no_model_is_refused(tmp_path, name, values, expected):
    with h5py.File(model_path(tmp_path, 3), "w") as file:
        file.attrs["format_version"] = 1
        file[name] = values

    if expected is None:
        found = read_model_parameters(tmp_path, 3).operators[0, Side.RHS]["diagonal"]
        assert (found.dtype, VECTOR.tolist()) == (torch.float32, found.tolist())
    else:
        assert expected in fault_of(lambda: read_model_parameters(tmp_path, 3))


@pytest.mark.parametrize(
    ("stored", "operator", "shapes", "expected"),
    [
        (
            {"translation": VECTOR},
            "complex_diagonal",
            {"real": (2,), "imag": (2,)},
            "has translation (4,), but operator complex_diagonal of relations[1] needs imag (2,) and real (2,);",
        ),
        (
            {"translation": VECTOR},
            "translation",
            {"translation": (7, 4)},
            "has translation (4,), but operator translation of relations[1] needs translation (7, 4);",
        ),
        *(
            (
                {"linear_transformation": MATRIX, "translation": VECTOR},
                operator,
                shapes,
                "has linear_transformation (4, 4) and translation (4,), but "
                f"operator {operator} of relations[1] needs {needed}",
            )
            for operator, shapes, needed in (
                ("none", {}, "no parameters"),
                ("linear", {"linear_transformation": (4, 4)}, "linear"),
            )
        ),
    ],
)
def test_parameters_that_are_not_those_of_the_operator_are_refused_with_what_is_there(
    tmp_path, stored, operator, shapes, expected
):
    path = write_model(tmp_path, {(1, Side.RHS): stored}, version=3)
    model = read_model_parameters(tmp_path, 3)
    line = fault_of(lambda: operator_parameters(model, 1, Side.RHS, operator, shapes))

    assert line.startswith(f"{path}: model/relations/1/operator/rhs {expected}")
    line = fault_of(lambda: operator_parameters(model, 1, Side.LHS, "translation", {"translation": (4,)}))
    assert "has no parameters, but" in line


def test_a_global_embedding_is_given_by_type_and_its_width_checked(tmp_path):
    write_model(tmp_path, {}, {"user": VECTOR}, version=3)
    model = read_model_parameters(tmp_path, 3)

    assert VECTOR.tolist() == global_embedding(model, "user", 4).tolist()
    assert global_embedding(model, "item", 4) is None
    expected = "the global embedding of type user has shape (4,), but the config says (5,);"
    assert expected in fault_of(lambda: global_embedding(model, "user", 5))

"""Relu's gates as products: the same numbers, on CPUs alone, and nothing of the vendor's is touched."""

from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from auditkit.arrays import Array
from auditkit.graph import simplify
from auditkit.graph.gradient import Facts, export
from auditkit.model import session
from auditkit.model.session import Session, Settings
from tests.support import onnx_models

CPU = Settings(device="cpu", precision="strict")
SIZE = 12


def gradient_of(*operators: str, kind: int = onnx.TensorProto.FLOAT) -> onnx.ModelProto:
    """Some operators one after the other, with the gradient of the last."""
    names = ["x", *(f"h{place}" for place in range(1, len(operators))), "y"]
    nodes = [helper.make_node(operator, [names[place]], [names[place + 1]]) for place, operator in enumerate(operators)]
    model = onnx_models.model(
        nodes, [onnx_models.value("x", ["N", SIZE], kind)], [onnx_models.value("y", ["N", SIZE], kind)]
    )
    shapes = dict.fromkeys(names, (None, SIZE))
    return export.with_gradient(model, Facts(shapes, dict.fromkeys(names, kind), float_kind=kind), "y", "x")


def operators(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


def run(model: onnx.ModelProto, image: Array, seed: Array) -> Array:
    (found,) = Session(model, CPU).run({"x": image, export.SEED: seed}, [export.GRADIENT])
    return found


def test_gates_are_products() -> None:
    model = gradient_of("Relu", "Neg", "Relu")
    found = operators(simplify.gates_as_products(model))
    assert found == operators(model) - Counter(Greater=2, Where=2) + Counter(HardSigmoid=2, Mul=2)
    onnx.checker.check_model(simplify.gates_as_products(model), full_check=True)


def test_the_numbers_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    image, seed = (rng.standard_normal((40, SIZE)).astype(np.float32) for _ in range(2))
    image[:, :8] = [0.0, -0.0, 1e-37, -1e-37, 3e38, -3e38, np.inf, -np.inf]
    model = gradient_of("Relu")
    products = run(model, image, seed)
    monkeypatch.setattr(session.simplify, "gates_as_products", lambda kept: kept)
    np.testing.assert_array_equal(products, run(model, image, seed))
    np.testing.assert_array_equal(products, np.where(image > 0, seed, 0))


def test_sessions_on_cpus_take_them(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[onnx.ModelProto] = []
    created = session.LocalSession

    def recorded(graph: bytes, *options: Any) -> session.LocalSession:
        made.append(onnx.load_from_string(graph))
        return created(graph, *options)

    monkeypatch.setattr(session, "LocalSession", recorded)
    Session(gradient_of("Relu"), CPU)
    assert operators(made[0])["HardSigmoid"] == 1
    assert operators(made[0])["Where"] == 0


@pytest.mark.parametrize("chain", [("Neg",), ("Abs",), ("Neg", "Sqrt")])
def test_without_such_gates_nothing_is_copied(chain: tuple[str, ...]) -> None:
    model = gradient_of(*chain)
    assert simplify.gates_as_products(model) is model


def test_other_types_keep_their_gates() -> None:
    model = gradient_of("Relu", kind=onnx.TensorProto.DOUBLE)
    assert simplify.gates_as_products(model) is model


def test_what_the_vendor_wrote_is_left_alone() -> None:
    """Where guards a logarithm of 0 here; a product would make it NaN."""
    zero = numpy_helper.from_array(np.float32(0), "zero")
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Greater", ["r", "zero"], ["c"]),
        helper.make_node("Log", ["r"], ["l"]), helper.make_node("Where", ["c", "l", "zero"], ["y"]),
    ]  # fmt: skip
    model = onnx_models.model(nodes, [onnx_models.value("x", ["N", SIZE])], [onnx_models.value("y", ["N", SIZE])])
    model.graph.initializer.append(zero)
    assert simplify.gates_as_products(model) is model
    (found,) = Session(model, CPU).run({"x": np.zeros((2, SIZE), np.float32)}, ["y"])
    assert not found.any()


@pytest.mark.parametrize("bounds", [(0.0, 6.0), (0.0, None), (None, 0.5)])
def test_clips_have_products_too(bounds: tuple[float | None, float | None], monkeypatch: pytest.MonkeyPatch) -> None:
    weights = {
        name: np.float32(bound) for name, bound in zip(("low", "high"), bounds, strict=True) if bound is not None
    }
    given = ["x", *(name if name in weights else "" for name in ("low", "high"))]
    nodes = [helper.make_node("Clip", given, ["y"])]
    plain = onnx_models.model(
        nodes, [onnx_models.value("x", ["N", SIZE])], [onnx_models.value("y", ["N", SIZE])], weights
    )
    shapes = {"x": (None, SIZE), "y": (None, SIZE), "low": (), "high": ()}
    model = export.with_gradient(plain, Facts(shapes, dict.fromkeys(shapes, onnx.TensorProto.FLOAT)), "y", "x")
    assert operators(simplify.gates_as_products(model))["Where"] == 0
    rng = np.random.default_rng(0)
    image, seed = (4 * rng.standard_normal((40, SIZE)).astype(np.float32) for _ in range(2))
    image[:, :6] = [0.0, 6.0, 0.5, 5.9999995, np.inf, -np.inf]
    products = run(model, image, seed)
    monkeypatch.setattr(session.simplify, "gates_as_products", lambda kept: kept)
    np.testing.assert_array_equal(products, run(model, image, seed))

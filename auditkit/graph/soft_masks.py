"""A head in front of a classifier that mixes two pictures by a soft mask, inside the graph.

A mask is a coarse grid of numbers and two matrices that spread it over the pixels:

    auditkit_pictures [P, ...]             pictures as the network takes them
    auditkit_grids    [Q, rows, columns]   coarse masks, 0 to 1
    auditkit_down     [S, H, rows]         how the grid's rows are spread over the picture's height
    auditkit_across   [T, columns, W]      and its columns over the width
    auditkit_rows     [N, 5]               top, bottom, grid, down, across

Row i shows m * top + (1 - m) * bottom with m = down @ grid @ across, so the complement of a mask is the same row with
top and bottom exchanged. A few dozen numbers a mask cross the bus instead of one a pixel, nothing is upsampled on the
host, and one form holds all that methods need: jittered bilinear grids (a matrix for each shift), learned masks (one
matrix), hard squares (a grid of one number, spread by indicators).
"""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from auditkit.graph.hard_masks import PICTURES, Ends, HeadBuilder, headed, picture_bank

GRIDS, DOWN, ACROSS, ROWS = "auditkit_grids", "auditkit_down", "auditkit_across", "auditkit_rows"
COLUMNS = ("top", "bottom", "grid", "down", "across")


def mixed(model: onnx.ModelProto, ends: Ends, *, channels_last: bool = False) -> onnx.ModelProto:
    """The classifier over banks, which may be held with channels last: rows of five integers in, probabilities out."""
    return headed(model, ends, _bank_inputs, _compose, channels_last=channels_last)


def _bank_inputs(ends: Ends) -> list[onnx.ValueInfoProto]:
    return [
        picture_bank(ends),
        helper.make_tensor_value_info(GRIDS, TensorProto.FLOAT, ["Q", "grid_rows", "grid_columns"]),
        helper.make_tensor_value_info(DOWN, TensorProto.FLOAT, ["S", ends.height, "grid_rows"]),
        helper.make_tensor_value_info(ACROSS, TensorProto.FLOAT, ["T", "grid_columns", ends.width]),
        helper.make_tensor_value_info(ROWS, TensorProto.INT32, ["N", len(COLUMNS)]),
    ]


def _compose(b: HeadBuilder, ends: Ends, _opset: int) -> None:
    """m * top + (1 - m) * bottom, under the name of the classifier's input; whole pixels are rounded."""
    # Whole pixels are mixed in float32, other pictures in their own type.
    inside = TensorProto.FLOAT if ends.element == TensorProto.UINT8 else ends.element
    banks = (PICTURES, PICTURES, GRIDS, DOWN, ACROSS)
    top, bottom, grid, down, across = (
        b.node("Gather", [bank, _column(b, index)], axis=0) for index, bank in enumerate(banks)
    )
    mask = b.node("MatMul", [b.node("MatMul", [down, grid]), across])
    shape = [-1, ends.height, ends.width, 1] if ends.channels_last else [-1, 1, ends.height, ends.width]
    mask = b.node("Reshape", [mask, b.constant(shape)])
    rest = b.node("Sub", [_number(b, 1.0), mask])
    if inside != TensorProto.FLOAT:
        mask, rest = (b.node("Cast", [name], to=inside) for name in (mask, rest))
    if inside != ends.element:
        top, bottom = (b.node("Cast", [name], to=inside) for name in (top, bottom))
    parts = [b.node("Mul", [mask, top]), b.node("Mul", [rest, bottom])]
    if inside == ends.element:
        b.node("Add", parts, ends.input)
        return
    whole = b.node("Floor", [b.node("Add", [b.node("Add", parts), _number(b, 0.5)])])
    b.node("Cast", [whole], ends.input, to=ends.element)


def _number(b: HeadBuilder, value: float) -> str:
    name = b.name("auditkit_number")
    b.constants.append(numpy_helper.from_array(np.array(value, np.float32), name))
    return name


def _column(b: HeadBuilder, index: int) -> str:
    return b.node("Gather", [ROWS, b.constant(index)], axis=1)

"""A head in front of a classifier that mixes two pictures by a soft mask, inside the graph.

A mask is a coarse grid of numbers and two matrices that spread it over the pixels:

    auditkit_pictures [P, ...]             pictures in the form the network takes
    auditkit_grids    [Q, rows, columns]   coarse masks, 0 to 1
    auditkit_down     [S, H, rows]         how the grid's rows spread over the picture's height
    auditkit_across   [T, columns, W]      and its columns over the width
    auditkit_rows     [N, 5]               top, bottom, grid, down, across

Row i shows m * top + (1 - m) * bottom with m = down @ grid @ across, so the complement of a mask is the same row with
top and bottom exchanged. A few dozen numbers per mask cross the bus instead of one per pixel, and nothing is upsampled
on the host. One form serves all methods: jittered bilinear grids (a matrix for each shift), learned masks (one matrix)
and hard squares (a grid of one number, spread by indicators).
"""

import numpy as np
import onnx
from onnx import TensorProto, helper

from auditkit.graph.edit import Builder
from auditkit.graph.hard_masks import PICTURES, Ends, headed, picture_bank, pixel_shape

GRIDS, DOWN, ACROSS, ROWS = "auditkit_grids", "auditkit_down", "auditkit_across", "auditkit_rows"
COLUMNS = ("top", "bottom", "grid", "down", "across")


def mixed(model: onnx.ModelProto, ends: Ends, *, channels_last: bool = False) -> onnx.ModelProto:
    """The classifier over banks: rows of five integers in, probabilities out; `channels_last` as in `masked`."""
    return headed(model, ends, _bank_inputs, _compose, channels_last=channels_last)


def _bank_inputs(ends: Ends) -> list[onnx.ValueInfoProto]:
    return [
        picture_bank(ends),
        helper.make_tensor_value_info(GRIDS, TensorProto.FLOAT, ["Q", "grid_rows", "grid_columns"]),
        helper.make_tensor_value_info(DOWN, TensorProto.FLOAT, ["S", ends.height, "grid_rows"]),
        helper.make_tensor_value_info(ACROSS, TensorProto.FLOAT, ["T", "grid_columns", ends.width]),
        helper.make_tensor_value_info(ROWS, TensorProto.INT32, ["N", len(COLUMNS)]),
    ]


def _compose(b: Builder, ends: Ends, _opset: int) -> None:
    """m * top + (1 - m) * bottom, under the name of the classifier's input; bytes are rounded."""
    # Bytes are mixed in float32, other pictures in their own type.
    mixing_type = TensorProto.FLOAT if ends.element == TensorProto.UINT8 else ends.element
    banks = (PICTURES, PICTURES, GRIDS, DOWN, ACROSS)
    top, bottom, grid, down, across = (
        b.node("Gather", [bank, _column(b, index)], axis=0) for index, bank in enumerate(banks)
    )
    mask = b.node("MatMul", [b.node("MatMul", [down, grid]), across])
    mask = b.node("Reshape", [mask, b.constant(pixel_shape(ends))])
    rest = b.node("Sub", [b.constant(1.0, np.float32), mask])
    if mixing_type != TensorProto.FLOAT:
        mask, rest = (b.node("Cast", [name], to=mixing_type) for name in (mask, rest))
    if mixing_type != ends.element:
        top, bottom = (b.node("Cast", [name], to=mixing_type) for name in (top, bottom))
    parts = [b.node("Mul", [mask, top]), b.node("Mul", [rest, bottom])]
    if mixing_type == ends.element:
        b.node("Add", parts, ends.input)
        return
    rounded = b.node("Floor", [b.node("Add", [b.node("Add", parts), b.constant(0.5, np.float32)])])
    b.node("Cast", [rounded], ends.input, to=ends.element)


def _column(b: Builder, index: int) -> str:
    return b.node("Gather", [ROWS, b.constant(index)], axis=1)

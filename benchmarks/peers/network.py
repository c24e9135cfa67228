"""One network for all: what an ONNX file computes, written as a plan that torch and Keras follow.

Batch norms are folded into convolutions, as they are in the file, so that nobody's copy has more to do than another's.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
PLAN = "network.npz"


def write(model: Path, folder: Path) -> None:
    """The plan of a file, its constants folded; needs onnx and onnxruntime."""
    import onnx  # noqa: PLC0415
    import onnxruntime  # noqa: PLC0415

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(folder / "folded.onnx")
    onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    graph = onnx.load(folder / "folded.onnx").graph
    constants = {one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer}
    nodes = [{"op": node.op_type, "inputs": list(node.input), "output": node.output[0],
              **{one.name: _plain(onnx.helper.get_attribute_value(one)) for one in node.attribute}}
             for node in graph.node]  # fmt: skip
    size = [dim.dim_value for dim in graph.input[0].type.tensor_type.shape.dim[1:]]
    ends = {"input": graph.input[0].name, "output": graph.output[0].name, "size": size, "nodes": nodes}
    np.savez(folder / PLAN, plan=json.dumps(ends), **{f"c:{name}": value for name, value in constants.items()})


def _plain(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def read(folder: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    """The plan and its constants."""
    with np.load(folder / PLAN) as file:
        constants = {name[2:]: file[name] for name in file.files if name.startswith("c:")}
        return json.loads(str(file["plan"])), constants


def _even(node: dict[str, Any]) -> int:
    """The padding of a window that has the same on all sides."""
    (pad,) = set(node.get("pads", [0]))
    return int(pad)


def _every(node: dict[str, Any], constants: dict[str, Array]) -> tuple[int, int]:
    """Axis and step of a slice that begins at 0 and goes to the end."""
    begin, end, axis, step = (int(constants[name][0]) for name in node["inputs"][1:5])
    if begin != 0 or end < 1 << 30:
        raise ValueError(f"{node['output']}: only slices of everything are known")
    return axis, step


def _channels(node: dict[str, Any], constants: dict[str, Array]) -> tuple[int, int]:
    """Channels of zeros put before and after."""
    before, after = np.split(constants[node["inputs"][1]], 2)
    if before[[0, 2, 3]].any() or after[[0, 2, 3]].any():
        raise ValueError(f"{node['output']}: only channels are padded")
    return int(before[1]), int(after[1])


def in_torch(folder: Path) -> Any:
    """The network as a torch module that returns logits of [N, 3, height, width]."""
    import torch  # noqa: PLC0415
    from torch.nn import functional as F  # noqa: N812, PLC0415 - as all the world calls it

    plan, constants = read(folder)

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            floats = {name: torch.from_numpy(held) for name, held in constants.items() if held.dtype == np.float32}
            self.weights = torch.nn.ParameterList(floats.values())
            self.named = dict(zip(floats, self.weights, strict=True))

        def forward(self, image: Any) -> Any:
            held = {plan["input"]: image}
            for node in plan["nodes"]:
                held[node["output"]] = self.done(node, [held.get(name) for name in node["inputs"]])
            return held[plan["output"]]

        def done(self, node: dict[str, Any], given: list[Any]) -> Any:
            x, (weight, bias) = given[0], [self.named.get(name) for name in [*node["inputs"], "", ""][1:3]]
            match node["op"]:
                case "Conv":
                    return F.conv2d(x, weight, bias, node["strides"], _even(node), groups=node["group"])
                case "Relu":
                    return F.relu(x, inplace=True)
                case "Add":
                    return x + given[1]
                case "MaxPool":
                    return F.max_pool2d(x, node["kernel_shape"], node["strides"], _even(node))
                case "GlobalAveragePool" | "ReduceMean":
                    return x.mean((2, 3))
                case "Flatten":
                    return x.flatten(1)
                case "Gemm":
                    return F.linear(x, weight, bias)
                case "Slice":
                    axis, step = _every(node, constants)
                    return x[(slice(None),) * axis + (slice(None, None, step),)]
                case "Pad":
                    return F.pad(x, (0, 0, 0, 0, *_channels(node, constants)))
            raise ValueError(f"{node['op']} has no counterpart in torch here")

    return Network().eval()


def in_keras(folder: Path) -> Any:
    """The network as a Keras model that returns probabilities of [N, height, width, 3]."""
    import keras  # noqa: PLC0415

    plan, constants = read(folder)
    layers = keras.layers

    def padded(x: Any, node: dict[str, Any]) -> Any:
        return layers.ZeroPadding2D(_even(node))(x) if _even(node) else x

    def done(node: dict[str, Any], given: list[Any]) -> Any:
        x, fixed = given[0], [constants[name] for name in node["inputs"][1:3] if name in constants]
        match node["op"]:
            case "Conv":
                same = node["strides"] == [1, 1] and [2 * _even(node) + 1] * 2 == node["kernel_shape"]
                layer = layers.Conv2D(fixed[0].shape[0], node["kernel_shape"], node["strides"], groups=node["group"],
                                      padding="same" if same else "valid")  # fmt: skip
                layer.build((None, None, None, fixed[0].shape[1] * node["group"]))
                layer.set_weights([fixed[0].transpose(2, 3, 1, 0), fixed[1]])
                return layer(x if same else padded(x, node))
            case "Relu":
                return layers.ReLU()(x)
            case "Add":
                return layers.Add()(given)
            case "MaxPool":  # of what a Relu returns: zeros around it change nothing
                return layers.MaxPooling2D(node["kernel_shape"], node["strides"])(padded(x, node))
            case "GlobalAveragePool" | "ReduceMean":
                return layers.GlobalAveragePooling2D()(x)
            case "Flatten":
                return x
            case "Gemm":
                layer = layers.Dense(fixed[0].shape[0])
                layer.build((None, fixed[0].shape[1]))
                layer.set_weights([fixed[0].T, fixed[1]])
                return layer(x)
            case "Slice":
                axis, step = _every(node, constants)
                return x[:, ::step] if axis == 2 else x[:, :, ::step]
            case "Pad":
                return keras.ops.pad(x, [(0, 0), (0, 0), (0, 0), _channels(node, constants)])
        raise ValueError(f"{node['op']} has no counterpart in Keras here")

    channels, height, width = plan["size"]
    image = keras.Input((height, width, channels))
    held = {plan["input"]: image}
    for node in plan["nodes"]:
        held[node["output"]] = done(node, [held[name] for name in node["inputs"] if name in held])
    return keras.Model(image, layers.Softmax()(held[plan["output"]]))

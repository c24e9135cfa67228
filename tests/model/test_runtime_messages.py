"""Messages of onnxruntime 1.31, as it gave them for damaged models, in words that a reader needs."""

import pytest

from auditkit.model.runtime_messages import plain_message

CODE = "[ONNXRuntimeError] : 1 : FAIL : "
MODEL_TYPES = "onnx::ModelProto&&, const onnxruntime::IOnnxRuntimeOpSchemaRegistryList*, const std::map<char, int>&"
MESSAGES = {
    f"{CODE}This is an invalid model. Error: Duplicate definition of name (f).": "Duplicate definition of name (f)",
    f"{CODE}model.cc:119 ValidateFunctionNodeCounts No opset registered for domain vendor in function Flat":
        "No opset registered for domain vendor in function Flat",
    f"{CODE}/src/core/model.cc:245 onnxruntime::Model::Model({MODEL_TYPES}) Missing opset.\n":
        "Missing opset",
    f"{CODE}/src/model.cc:340 onnxruntime::Model::Model({MODEL_TYPES}) [ONNXRuntimeError] : 10 : INVALID : Recursive":
        "Recursive",
    f"{CODE}Non-zero status code returned while running RandomNormal node. Name:'' Status Message: "
    "/src/bfc_arena.cc:360 void* onnxruntime::BFCArena::AllocateRawInternal(size_t, bool, std::function<void(int)>) "
    "Failed to allocate memory for requested buffer of size 68719476736\n":
        "node '' (RandomNormal): Failed to allocate memory for requested buffer of size 68719476736",
    f"{CODE}/src/graph.cc:1587 void onnxruntime::Graph::Initialize() This is an invalid model. Output (y) is missing.":
        "Output (y) is missing",
    f'{CODE}This is an invalid model. In Node, ("flat", Einsum, "", -1) : ("p": tensor(float),) -> ("f",) , Error '
    "Unrecognized attribute: axis for operator Einsum":
        "node 'flat' (Einsum): Unrecognized attribute: axis for operator Einsum",
    f"{CODE}Node (gemm) Op (Gemm) [ShapeInferenceError] Dimension mismatch in unification between 6 and 384":
        "node 'gemm' (Gemm): Dimension mismatch in unification between 6 and 384",
    f"{CODE}Type Error: Type (tensor(uint64)) of output arg (p) does not match expected type (tensor(float)).":
        "Type (uint64) of output arg (p) does not match expected type (float)",
    f"{CODE}Node(conv) with schema(::Conv:11) has input size 0 not in range [min=2, max=3].":
        "Node(conv) with Conv has input size 0 not in range [min=2, max=3]",
    "out of memory (12 bytes)": "out of memory (12 bytes)",
    "": "",
}  # fmt: skip


@pytest.mark.parametrize("message", MESSAGES)
def test_codes_positions_and_types_are_left_out(message: str) -> None:
    assert plain_message(message) == MESSAGES[message]


def test_long_messages_are_cut_in_little_time() -> None:
    for unit in ("x", "::x(", "a::b((", "/src/a.cc:1 a::b(", 'In Node, ("', "tensor(" * 3):
        assert len(plain_message(unit * 10**6)) <= 300

"""What onnxruntime says when it fails, in one short line: without its codes, source positions and C++ types."""

import re

_MOST_READ = 4000  # characters; names out of the file may be megabytes long
_MOST_SHOWN = 300
_SIGNATURE = r"[^()]*::[\w~]+\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)(?: const)?(?: \[with [^\]]*\])?"
# In this order: what a pattern leaves behind may match the next.
_RULES: tuple[tuple[re.Pattern[str], str], ...] = tuple((re.compile(pattern), text) for pattern, text in (
    (r"\[ONNXRuntimeError\] : \d+ : \w+ : ", ""),
    (rf"\S+\.(?:cc|h|hpp|cpp):\d+ {_SIGNATURE} ", ""),  # source position and function
    (r"\S+\.(?:cc|h|hpp|cpp):\d+ \w+ ", " "),
    (r"^Load model from .*? failed:", ""),
    (r"^Exception (?:during initialization|caught): ", ""),
    (r"^Error in execution: ", ""),
    (r"Non-zero status code returned while running (\S*) node\. Name:'(.*?)' Status Message: ", r"node '\2' (\1): "),
    (r"^(?:This is an i|I)nvalid model\. ", ""),
    (r'^In Node, \("(.*?)", (\S*), .*? , Error ', r"node '\1' (\2): "),
    (r"^Node \((.*?)\) Op \((\S*)\) ", r"node '\1' (\2): "),
    (r"^(?:Fatal e|Type E|E)rror: ", ""),
    (r"\[(?:Shape|Type)InferenceError\] ", ""),
    (r"\(op_type:(\S+), node name: (.*?)\): ", r"node '\2' (\1): "),
    (r"schema\(\w*::(\w+):\d+\)", r"\1"),
    (r"\b(?:tensor|sparse_tensor)\((\w+)\)", r"\1"),
))  # fmt: skip


def plain_message(message: str) -> str:
    """The runtime's message as a part of a sentence."""
    text = " ".join(message[:_MOST_READ].split())
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    text = " ".join(text.split()).rstrip(". ")
    return text if len(text) <= _MOST_SHOWN else text[: _MOST_SHOWN - 3] + "..."

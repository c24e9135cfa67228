"""ONNX in, ONNX out; never a session."""

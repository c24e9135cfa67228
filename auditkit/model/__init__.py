"""An untrusted ONNX file becomes a Classifier."""

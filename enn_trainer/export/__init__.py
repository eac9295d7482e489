"""Export of agents: ONNX graphs, their check, and the files for programs that play."""

OPSET = 18
"""Version of the operators, of onnxruntime 1.14 and later."""

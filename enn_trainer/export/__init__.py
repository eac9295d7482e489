"""Export of agents: ONNX graphs, their check, and the files for programs that play."""

"""The process that a run lives in: memory, garbage collection and the GPU."""

"""CUDA kernels: one `.cu` file per operation, its launch in the Python file of the same name (the twin)."""

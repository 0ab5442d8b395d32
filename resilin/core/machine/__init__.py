"""The machine that this process runs on: its memory, threads, BLAS and arithmetic."""

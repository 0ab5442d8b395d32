"""Ready-made fuzzers: arguments of operations with one tensor, with two, and of Fourier transforms."""

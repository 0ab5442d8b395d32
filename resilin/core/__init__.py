"""The engine: tensors, automatic differentiation, operations, random numbers. Start with README.md."""

from resilin.core import methods as methods

"""The engine: tensors, automatic differentiation, operations, random numbers. Start with README.md."""

from resilin.core import memory as memory
from resilin.core import methods as methods
from resilin.core.ops import limits as limits

memory.install()  # for this thread: the one that imports resilin; others that make tensors install for themselves

"""resilin.nn.modules.sparse. Written by scripts/type_stubs.py."""

from resilin.nn import Embedding as Embedding
from resilin.nn import EmbeddingBag as EmbeddingBag

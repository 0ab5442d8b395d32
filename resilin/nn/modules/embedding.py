"""Embedding."""

from __future__ import annotations

from typing import Any

from resilin.core.autograd.grad_mode import no_grad
from resilin.core.tensor import Parameter, Tensor
from resilin.errors import UsageError
from resilin.nn import functional as F
from resilin.nn import init
from resilin.nn.modules.module import Module
from resilin.nn.modules.shared import empty


class Embedding(Module):
    """A table of `num_embeddings` rows of width `embedding_dim`, looked up by integers.

    Shape: (*) integers -> (*, embedding_dim). weight starts standard normal.
    padding_idx: a row that starts zero and gets no gradient. Rows that occur several times in a batch are summed in
    the order of the batch.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise UsageError(f"Embedding: padding_idx={padding_idx} is outside of {num_embeddings} rows")
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        self.weight = Parameter(empty((num_embeddings, embedding_dim), device, dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the start values anew."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            with no_grad():
                self.weight[self.padding_idx] = 0

    @classmethod
    def from_pretrained(cls, embeddings: Tensor, freeze: bool = True, padding_idx: int | None = None) -> Embedding:
        """A table over `embeddings` (shared memory), not trained if `freeze`."""
        if embeddings.dim() != 2:
            raise UsageError(f"Embedding.from_pretrained: expected two dimensions, got {tuple(embeddings.shape)}")
        rows, width = embeddings.shape
        table = cls(rows, width, padding_idx, embeddings.device, embeddings.dtype)
        table.weight = Parameter(embeddings, requires_grad=not freeze)
        return table

    def forward(self, input: Tensor) -> Tensor:
        """See the class."""
        return F.embedding(input, self.weight, self.padding_idx)

    def extra_repr(self) -> str:
        """As in PyTorch."""
        text = f"{self.num_embeddings}, {self.embedding_dim}"
        return text if self.padding_idx is None else f"{text}, padding_idx={self.padding_idx}"

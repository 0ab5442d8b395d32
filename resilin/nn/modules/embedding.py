"""Embedding."""

from __future__ import annotations

from typing import Any

from resilin.core.autograd.grad_mode import no_grad
from resilin.core.ops import creation
from resilin.core.tensor import Parameter, Tensor
from resilin.errors import UsageError
from resilin.nn import functional as F
from resilin.nn import init
from resilin.nn.modules.module import Module


class Embedding(Module):
    """A table of `num_embeddings` rows of width `embedding_dim`, looked up by integers.

    Shape: (*) integers -> (*, embedding_dim). weight starts standard normal.
    padding_idx: a row that starts zero and gets no gradient. Rows that occur several times in a batch are summed in
    the order of the batch.
    max_norm: rows looked up whose `norm_type`-norm is larger are scaled down to it, in `weight` itself.
    scale_grad_by_freq: gradients of a row are divided by how often it occurs in the batch. sparse: refused.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        _weight: Tensor | None = None,
        _freeze: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise UsageError(f"Embedding: padding_idx={padding_idx} is outside of {num_embeddings} rows")
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        if sparse:
            raise UsageError("Embedding: there are no sparse tensors; leave out sparse=True, gradients are dense")
        self.max_norm = max_norm
        self.norm_type = norm_type
        self.scale_grad_by_freq = scale_grad_by_freq
        self.sparse = sparse
        if _weight is not None:
            if tuple(_weight.shape) != (num_embeddings, embedding_dim):
                wanted = (num_embeddings, embedding_dim)
                raise UsageError(f"Embedding: expected _weight of shape {wanted}, got {tuple(_weight.shape)}")
            self.weight = Parameter(_weight, requires_grad=not _freeze)
            return
        self.weight = Parameter(
            creation.empty(num_embeddings, embedding_dim, device=device, dtype=dtype), requires_grad=not _freeze
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the start values anew."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            with no_grad():
                self.weight[self.padding_idx] = 0

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Tensor,
        freeze: bool = True,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Embedding:
        """A table over `embeddings` (shared memory), not trained if `freeze`."""
        if embeddings.dim() != 2:
            raise UsageError(f"Embedding.from_pretrained: expected two dimensions, got {tuple(embeddings.shape)}")
        rows, width = embeddings.shape
        options = (padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
        return cls(rows, width, *options, _weight=embeddings, _freeze=freeze)

    def forward(self, input: Tensor) -> Tensor:
        """See the class."""
        options = (self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse)
        return F.embedding(input, self.weight, self.padding_idx, *options)

    def extra_repr(self) -> str:
        """As in PyTorch."""
        text = f"{self.num_embeddings}, {self.embedding_dim}"
        for name, plain in (("padding_idx", None), ("max_norm", None), ("norm_type", 2), ("scale_grad_by_freq", False)):
            if (value := getattr(self, name)) != plain:
                text += f", {name}={value}"
        return text

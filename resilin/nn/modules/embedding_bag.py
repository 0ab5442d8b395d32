"""Bags of embeddings."""

from __future__ import annotations

from typing import Any

from resilin.core.autograd.grad_mode import no_grad
from resilin.core.ops import creation
from resilin.core.tensor import Parameter, Tensor
from resilin.nn import functional as F
from resilin.nn import init
from resilin.nn.modules.module import Module


class EmbeddingBag(Module):
    """The sum, mean or maximum over each bag of rows of a table, looked up by integers.

    Shape: (B, length) integers, or (N,) with offsets (B,) -> (B, embedding_dim); an empty bag gives zeros. weight
    starts standard normal. The options are those of `functional.embedding_bag`; sparse is refused.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        _weight: Tensor | None = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise ValueError(f"EmbeddingBag: padding_idx={padding_idx} is outside of {num_embeddings} rows")
        if sparse:
            raise NotImplementedError("EmbeddingBag: there are no sparse tensors; leave out sparse=True")
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.max_norm = max_norm
        self.norm_type = norm_type
        self.scale_grad_by_freq = scale_grad_by_freq
        self.mode = mode
        self.sparse = sparse
        self.include_last_offset = include_last_offset
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        if _weight is None:
            self.weight = Parameter(creation.empty(num_embeddings, embedding_dim, device=device, dtype=dtype))
            self.reset_parameters()
        elif tuple(_weight.shape) != (num_embeddings, embedding_dim):
            raise ValueError(
                f"EmbeddingBag: expected _weight of shape {(num_embeddings, embedding_dim)}, got {tuple(_weight.shape)}"
            )
        else:
            self.weight = Parameter(_weight)

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
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
    ) -> EmbeddingBag:
        """A table over `embeddings` (shared memory), not trained if `freeze`."""
        if embeddings.dim() != 2:
            raise ValueError(f"EmbeddingBag.from_pretrained: expected two dimensions, got {tuple(embeddings.shape)}")
        rows, width = embeddings.shape
        options = (max_norm, norm_type, scale_grad_by_freq, mode, sparse, embeddings, include_last_offset, padding_idx)
        bag = cls(rows, width, *options)
        bag.weight.requires_grad_(not freeze)
        return bag

    def forward(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        """See the class."""
        return F.embedding_bag(
            input,
            self.weight,
            offsets,
            max_norm=self.max_norm,
            norm_type=self.norm_type,
            scale_grad_by_freq=self.scale_grad_by_freq,
            mode=self.mode,
            sparse=self.sparse,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=self.padding_idx,
        )

    def extra_repr(self) -> str:
        """As in PyTorch."""
        text = f"{self.num_embeddings}, {self.embedding_dim}"
        for name, plain in (("max_norm", None), ("norm_type", 2), ("scale_grad_by_freq", False)):
            if (value := getattr(self, name)) != plain:
                text += f", {name}={value}"
        text += f", mode={self.mode!r}"
        return text if self.padding_idx is None else f"{text}, padding_idx={self.padding_idx}"

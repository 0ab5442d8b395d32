"""Multi-head attention. # B batch, T queries, S keys, E width, H heads, D width of a head (E = H * D)"""

from __future__ import annotations

from typing import Any

from resilin.core.api.shaping import cat
from resilin.core.ops import creation
from resilin.core.tensor import Parameter, Tensor
from resilin.errors import UsageError
from resilin.nn import functional as F
from resilin.nn import init
from resilin.nn.modules.linear import Linear
from resilin.nn.modules.module import Module
from resilin.nn.modules.shared import empty


class MultiheadAttention(Module):
    """Attention of H heads side by side (Vaswani et al., 2017), with PyTorch's parameters and masks.

    Shape: query (T, B, E), key (S, B, kdim), value (S, B, vdim), or with batch_first (B, T, E), ...; without the batch
    dimension too. Gives the output, shaped as query, and the attention weights: (B, T, S), averaged over heads, or
    (B, H, T, S) with average_attn_weights=False, or None with need_weights=False, which is faster.
    key_padding_mask: (B, S). attn_mask: (T, S) or (B * H, T, S). In a boolean mask True forbids; a float mask is added
    to the scores. is_causal: query t sees keys up to t only; attn_mask must then say the same, or be left out.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if embed_dim <= 0 or num_heads <= 0 or embed_dim % num_heads:
            raise UsageError(
                f"MultiheadAttention: embed_dim={embed_dim} must be a positive multiple of num_heads={num_heads}"
            )
        self.embed_dim = embed_dim
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.dropout = dropout
        self.batch_first = batch_first
        self.add_zero_attn = add_zero_attn
        self._same_width = self.kdim == embed_dim and self.vdim == embed_dim
        self._make_projections(bias, add_bias_kv, device, dtype)
        self.out_proj = Linear(embed_dim, embed_dim, bias=bias, device=device, dtype=dtype)
        self.reset_parameters()

    def _make_projections(self, bias: bool, add_bias_kv: bool, device: Any, dtype: Any) -> None:
        width = self.embed_dim
        shapes = {
            "in_proj_weight": (3 * width, width) if self._same_width else None,
            "q_proj_weight": None if self._same_width else (width, width),
            "k_proj_weight": None if self._same_width else (width, self.kdim),
            "v_proj_weight": None if self._same_width else (width, self.vdim),
            "in_proj_bias": (3 * width,) if bias else None,
            "bias_k": (1, 1, width) if add_bias_kv else None,
            "bias_v": (1, 1, width) if add_bias_kv else None,
        }
        for name, shape in shapes.items():
            self.register_parameter(name, None if shape is None else Parameter(empty(shape, device, dtype)))

    def reset_parameters(self) -> None:
        """Draw the start values anew."""
        for name in ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"):
            weight = getattr(self, name)
            if weight is not None:
                init.xavier_uniform_(weight)
        if self.in_proj_bias is not None:
            init.zeros_(self.in_proj_bias)
            init.zeros_(self.out_proj.bias)
        if self.bias_k is not None:
            init.xavier_normal_(self.bias_k)
            init.xavier_normal_(self.bias_v)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """See the class."""
        batched = query.dim() == 3
        if query.dim() not in (2, 3) or key.dim() != query.dim() or value.dim() != query.dim():
            raise UsageError(
                "MultiheadAttention: query, key and value must all have 2 or all have 3 dimensions, got "
                f"{tuple(query.shape)}, {tuple(key.shape)}, {tuple(value.shape)}"
            )
        q_BTE, k_BSE, v_BSE = self._project(query, key, value, batched)
        mask = self._mask(q_BTE, k_BSE, key_padding_mask, attn_mask, is_causal, need_weights)
        k_BSE, v_BSE, mask = self._extend(k_BSE, v_BSE, mask)
        q, k, v = (self._heads(x) for x in (q_BTE, k_BSE, v_BSE))
        dropout = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            weights = _weights(q, k, mask)
            y_BHTD = F.dropout(weights, dropout, self.training) @ v
        else:
            y_BHTD = F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal and mask is None)
        y = self.out_proj(y_BHTD.transpose(1, 2).reshape(q_BTE.shape))
        if weights is not None and average_attn_weights:
            weights = weights.mean(dim=1)
        if not batched:
            return y[0], None if weights is None else weights[0]
        return y if self.batch_first else y.transpose(0, 1), weights

    def _project(self, query: Tensor, key: Tensor, value: Tensor, batched: bool) -> list[Tensor]:
        """Queries, keys and values (B, length, E), each through its projection."""
        if query is key and key is value and self._same_width:
            x = self._batch_first(query, batched)
            return list(F.linear(x, self.in_proj_weight, self.in_proj_bias).chunk(3, dim=-1))
        if self._same_width:
            weights = self.in_proj_weight.chunk(3, dim=0)
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3, dim=0)
        sources = (self._batch_first(x, batched) for x in (query, key, value))
        return [F.linear(x, w, b) for x, w, b in zip(sources, weights, biases, strict=True)]

    def _batch_first(self, x: Tensor, batched: bool) -> Tensor:
        if not batched:
            return x[None]
        first: Tensor = x if self.batch_first else x.transpose(0, 1)
        return first

    def _heads(self, x: Tensor) -> Tensor:
        heads: Tensor = x.reshape(x.shape[0], x.shape[1], self.num_heads, self.head_dim).transpose(1, 2)
        return heads

    def _mask(
        self,
        q_BTE: Tensor,
        k_BSE: Tensor,
        key_padding_mask: Tensor | None,
        attn_mask: Tensor | None,
        is_causal: bool,
        need_weights: bool,
    ) -> Tensor | None:
        """All masks as one that is added to the scores, (1 or B, 1 or H, 1 or T, S); None: nothing, or only causal."""
        batch, queries, keys = q_BTE.shape[0], q_BTE.shape[1], k_BSE.shape[1]
        alone = key_padding_mask is None and self.bias_k is None and not self.add_zero_attn
        if is_causal and alone and not need_weights:
            return None  # the fused kernel knows the causal mask; attn_mask, if given, says the same
        if is_causal and attn_mask is None:
            attn_mask = creation.ones(queries, keys, device=q_BTE.device, dtype="bool").triu(1)
        merged: Tensor | None = None
        if attn_mask is not None:
            merged = _added(attn_mask, q_BTE)
            shape = (1, 1, queries, keys) if merged.dim() == 2 else (batch, self.num_heads, queries, keys)
            merged = _shaped("attn_mask", merged, shape)
        if key_padding_mask is not None:
            padding = _shaped("key_padding_mask", _added(key_padding_mask, q_BTE), (batch, 1, 1, keys))
            merged = padding if merged is None else merged + padding
        return merged

    def _extend(self, k_BSE: Tensor, v_BSE: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Append the learned key and value (add_bias_kv) and a zero one (add_zero_attn), which no mask forbids."""
        batch, _, width = k_BSE.shape
        more_k, more_v = [k_BSE], [v_BSE]
        if self.bias_k is not None:
            more_k.append(self.bias_k.expand(batch, 1, width))
            more_v.append(self.bias_v.expand(batch, 1, width))
        if self.add_zero_attn:
            zero = creation.zeros(batch, 1, width, device=k_BSE.device, dtype=k_BSE.dtype)
            more_k.append(zero)
            more_v.append(zero)
        extra = len(more_k) - 1
        if extra == 0:
            return k_BSE, v_BSE, mask
        if mask is not None:
            free = creation.zeros(*mask.shape[:-1], extra, device=mask.device, dtype=mask.dtype)
            mask = cat([mask, free], dim=-1)
        return cat(more_k, dim=1), cat(more_v, dim=1), mask


def _weights(q_BHTD: Tensor, k_BHSD: Tensor, mask: Tensor | None) -> Tensor:
    """softmax of the scores: what each query takes of each value."""
    scores = (q_BHTD * q_BHTD.shape[-1] ** -0.5) @ k_BHSD.transpose(-2, -1)
    return F.softmax(scores if mask is None else scores + mask, -1)


def _added(mask: Tensor, like: Tensor) -> Tensor:
    """A boolean mask (True forbids) as numbers to add; a float mask as it is."""
    if str(mask.dtype).endswith("bool"):
        zeros = creation.zeros(*mask.shape, device=like.device, dtype=like.dtype)
        forbidden: Tensor = zeros.masked_fill(mask, float("-inf"))
        return forbidden
    return mask


def _shaped(name: str, mask: Tensor, shape: tuple[int, ...]) -> Tensor:
    if mask.numel() != shape[0] * shape[1] * shape[2] * shape[3]:
        raise UsageError(f"MultiheadAttention: {name} of shape {tuple(mask.shape)} does not fit (B, H, T, S) = {shape}")
    shaped: Tensor = mask.reshape(shape)
    return shaped

"""Multi-head attention. # B batch, T queries, S keys, E width, H heads"""

from __future__ import annotations

from typing import Any

from resilin.core.ops import creation
from resilin.core.tensor import Parameter, Tensor
from resilin.errors import UsageError
from resilin.nn import functional as F
from resilin.nn import init
from resilin.nn.modules.linear import NonDynamicallyQuantizableLinear
from resilin.nn.modules.module import Module


class MultiheadAttention(Module):
    """Attention of H heads side by side (Vaswani et al., 2017), with PyTorch's parameters and masks.

    Shape: query (T, B, E), key (S, B, kdim), value (S, B, vdim), or with batch_first (B, T, E), ...; without the batch
    dimension too. Gives the output, shaped as query, and the attention weights: (B, T, S), averaged over heads, or
    (B, H, T, S) with average_attn_weights=False, or None with need_weights=False, which is faster.
    key_padding_mask: (B, S), or (S,) without the batch. attn_mask: (T, S) or (B * H, T, S). In a boolean mask True
    forbids; a float mask is added to the scores. is_causal: query t sees keys up to t only; attn_mask must then say the
    same, or be left out.
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
        self._qkv_same_embed_dim = self.kdim == embed_dim and self.vdim == embed_dim
        self._make_projections(bias, add_bias_kv, device, dtype)
        self.out_proj = NonDynamicallyQuantizableLinear(embed_dim, embed_dim, bias=bias, device=device, dtype=dtype)
        self.reset_parameters()

    def _make_projections(self, bias: bool, add_bias_kv: bool, device: Any, dtype: Any) -> None:
        width = self.embed_dim
        shapes = {
            "in_proj_weight": (3 * width, width) if self._qkv_same_embed_dim else None,
            "q_proj_weight": None if self._qkv_same_embed_dim else (width, width),
            "k_proj_weight": None if self._qkv_same_embed_dim else (width, self.kdim),
            "v_proj_weight": None if self._qkv_same_embed_dim else (width, self.vdim),
            "in_proj_bias": (3 * width,) if bias else None,
            "bias_k": (1, 1, width) if add_bias_kv else None,
            "bias_v": (1, 1, width) if add_bias_kv else None,
        }
        for name, shape in shapes.items():
            self.register_parameter(
                name, None if shape is None else Parameter(creation.empty(*shape, device=device, dtype=dtype))
            )

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
        turned = self.batch_first and query.dim() == 3
        if turned and key.dim() == value.dim() == 3:
            known = {id(x): x.transpose(0, 1) for x in (query, key, value)}  # one for several stays one
            query, key, value = (known[id(x)] for x in (query, key, value))
        y, weights = F.multi_head_attention_forward(
            query,
            key,
            value,
            self.embed_dim,
            self.num_heads,
            self.in_proj_weight,
            self.in_proj_bias,
            self.bias_k,
            self.bias_v,
            self.add_zero_attn,
            self.dropout,
            self.out_proj.weight,
            self.out_proj.bias,
            self.training,
            key_padding_mask,
            need_weights,
            attn_mask,
            not self._qkv_same_embed_dim,
            self.q_proj_weight,
            self.k_proj_weight,
            self.v_proj_weight,
            average_attn_weights=average_attn_weights,
            is_causal=is_causal,
        )
        return y.transpose(0, 1) if turned else y, weights

"""Multi-head attention as a function. # B batch, T queries, S keys, E width, H heads, D width of a head (E = H * D)"""

from __future__ import annotations

from typing import Any

from resilin.core.api.manipulation.joining import cat
from resilin.core.api.mathematics.half_precision import rounded_once
from resilin.core.api.nn import neural
from resilin.core.ops import creation
from resilin.core.tensor import Tensor
from resilin.errors import UsageError

_WHERE = "multi_head_attention_forward"


def multi_head_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """What `nn.MultiheadAttention` computes: (T, B, E), (S, B, K), (S, B, V) or without B -> output and weights.

    Weights (B, T, S), the mean over heads, or (B, H, T, S) with average_attn_weights=False; None without need_weights.
    key_padding_mask (B, S), or (S,) without B; attn_mask (T, S) or (B * H, T, S). In a boolean mask True forbids; a
    float mask is added to the scores. static_k, static_v: (B * H, S, D), in place of projected keys and values.
    Raises: UsageError for shapes that do not fit, and for masks that are neither boolean nor floating point.
    """
    batched = _check(query, key, value, embed_dim_to_check, num_heads)
    if use_separate_proj_weight:
        weights: Any = (q_proj_weight, k_proj_weight, v_proj_weight)
    else:
        weights = in_proj_weight
    q_BTE, k_BSE, v_BSE = _project([query, key, value], weights, in_proj_bias, batched)
    if static_k is not None:
        k_BSE = _joined("static_k", static_k, q_BTE, num_heads)
    if static_v is not None:
        v_BSE = _joined("static_v", static_v, q_BTE, num_heads)
    extended = bias_k is not None or add_zero_attn
    skips = is_causal and key_padding_mask is None and not extended and not need_weights
    # the fused kernel knows the causal mask; attn_mask, if given, says the same
    mask = None if skips else _mask(q_BTE, k_BSE, num_heads, batched, key_padding_mask, attn_mask, is_causal)
    k_BSE, v_BSE, mask = _extend(k_BSE, v_BSE, mask, bias_k, bias_v, add_zero_attn)
    q, k, v = (_heads(x, num_heads) for x in (q_BTE, k_BSE, v_BSE))
    dropout = dropout_p if training else 0.0
    shares: Tensor | None = None
    if need_weights:
        shares = _weights(q, k, mask)
        y_BHTD = neural.dropout(shares, dropout, training) @ v
    else:
        y_BHTD = neural.scaled_dot_product_attention(q, k, v, mask, dropout, skips)
    y = neural.linear(y_BHTD.transpose(1, 2).reshape(q_BTE.shape), out_proj_weight, out_proj_bias)
    if shares is not None and average_attn_weights:
        shares = shares.mean(dim=1)
    if batched:
        return y.transpose(0, 1), shares
    return y[0], None if shares is None else shares[0]


def _check(query: Tensor, key: Tensor, value: Tensor, width: int, heads: int) -> bool:
    """Whether there is a batch dimension."""
    neural.need_tensors(_WHERE, query=query, key=key, value=value)
    shapes = f"{tuple(query.shape)}, {tuple(key.shape)}, {tuple(value.shape)}"
    if query.dim() not in (2, 3) or key.dim() != query.dim() or value.dim() != query.dim():
        raise UsageError(f"{_WHERE}: query, key and value must all have 2 or all have 3 dimensions, got {shapes}")
    if query.shape[-1] != width:
        raise UsageError(f"{_WHERE}: expected queries of width {width}, got query, key and value {shapes}")
    if key.shape[:-1] != value.shape[:-1] or query.shape[1:-1] != key.shape[1:-1]:
        raise UsageError(f"{_WHERE}: key and value must have one length and all the same batch, got {shapes}")
    if heads < 1 or width % heads:
        raise UsageError(f"{_WHERE}: the width {width} must be a multiple of num_heads={heads}")
    return bool(query.dim() == 3)


def _project(sources: list[Tensor], weights: Any, bias: Tensor | None, batched: bool) -> list[Tensor]:
    """Queries, keys and values (B, length, E), each through its projection; `weights` is one tensor or three."""
    if isinstance(weights, Tensor):
        if all(x is sources[0] for x in sources):
            return list(neural.linear(_batch_first(sources[0], batched), weights, bias).chunk(3, dim=-1))
        weights = weights.chunk(3, dim=0)
    if any(weight is None for weight in weights):
        raise UsageError(f"{_WHERE}: in_proj_weight, or all three of q_proj_weight and the others, must be given")
    biases = (None,) * 3 if bias is None else bias.chunk(3, dim=0)
    return [neural.linear(_batch_first(x, batched), w, b) for x, w, b in zip(sources, weights, biases, strict=True)]


def _batch_first(x: Tensor, batched: bool) -> Tensor:
    first: Tensor = x.transpose(0, 1) if batched else x[None]
    return first


def _joined(name: str, heads_BHSD: Tensor, q_BTE: Tensor, heads: int) -> Tensor:
    """Keys or values given head by head (B * H, S, D) as (B, S, E)."""
    batch, _, width = q_BTE.shape
    shape = tuple(heads_BHSD.shape)
    if len(shape) != 3 or shape[0] != batch * heads or shape[2] != width // heads:
        raise UsageError(f"{_WHERE}: expected {name} ({batch * heads}, S, {width // heads}), got {shape}")
    joined: Tensor = heads_BHSD.reshape(batch, heads, shape[1], shape[2]).transpose(1, 2)
    return joined.reshape(batch, shape[1], width)


def _heads(x: Tensor, heads: int) -> Tensor:
    split: Tensor = x.reshape(x.shape[0], x.shape[1], heads, x.shape[2] // heads).transpose(1, 2)
    return split


def _mask(
    q_BTE: Tensor,
    k_BSE: Tensor,
    heads: int,
    batched: bool,
    padding: Tensor | None,
    attn_mask: Tensor | None,
    is_causal: bool,
) -> Tensor | None:
    """All masks as one that is added to the scores, (1 or B, 1 or H, 1 or T, S); None: nothing is masked."""
    batch, queries, keys = q_BTE.shape[0], q_BTE.shape[1], k_BSE.shape[1]
    if is_causal and attn_mask is None:
        attn_mask = creation.ones(queries, keys, device=q_BTE.device, dtype="bool").triu(1)
    merged: Tensor | None = None
    if attn_mask is not None:
        _need_mask("attn_mask", attn_mask, (queries, keys), (batch * heads, queries, keys))
        shape = (1, 1, queries, keys) if attn_mask.dim() == 2 else (batch, heads, queries, keys)
        merged = _added(attn_mask, q_BTE).reshape(shape)
    if padding is not None:
        _need_mask("key_padding_mask", padding, (batch, keys) if batched else (keys,))
        hidden: Tensor = _added(padding, q_BTE).reshape(batch, 1, 1, keys)
        merged = hidden if merged is None else merged + hidden
    return merged


def _extend(
    k_BSE: Tensor, v_BSE: Tensor, mask: Tensor | None, bias_k: Tensor | None, bias_v: Tensor | None, zero: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Append the learned key and value (add_bias_kv) and a zero one (add_zero_attn), which no mask forbids."""
    batch, _, width = k_BSE.shape
    more_k, more_v = [k_BSE], [v_BSE]
    if bias_k is not None and bias_v is not None:
        more_k.append(bias_k.expand(batch, 1, width))
        more_v.append(bias_v.expand(batch, 1, width))
    if zero:
        nothing = creation.zeros(batch, 1, width, device=k_BSE.device, dtype=k_BSE.dtype)
        more_k.append(nothing)
        more_v.append(nothing)
    extra = len(more_k) - 1
    if extra == 0:
        return k_BSE, v_BSE, mask
    if mask is not None:
        free = creation.zeros(*mask.shape[:-1], extra, device=mask.device, dtype=mask.dtype)
        mask = cat([mask, free], dim=-1)
    return cat(more_k, dim=1), cat(more_v, dim=1), mask


@rounded_once
def _weights(q_BHTD: Tensor, k_BHSD: Tensor, mask: Tensor | None) -> Tensor:
    """softmax of the scores: what each query takes of each value."""
    scores = (q_BHTD * q_BHTD.shape[-1] ** -0.5) @ k_BHSD.transpose(-2, -1)
    return neural.softmax(scores if mask is None else scores + mask, -1)


def _added(mask: Tensor, like: Tensor) -> Tensor:
    """A boolean mask (True forbids) as numbers to add; a float mask as it is."""
    if str(mask.dtype).endswith("bool"):
        zeros = creation.zeros(*mask.shape, device=like.device, dtype=like.dtype)
        forbidden: Tensor = zeros.masked_fill(mask, float("-inf"))
        return forbidden
    return mask


def _need_mask(name: str, mask: Tensor, *shapes: tuple[int, ...]) -> None:
    neural.need_tensors(_WHERE, **{name: mask})
    if mask.dtype.name != "bool" and not mask.is_floating_point():
        raise UsageError(f"{_WHERE}: only bool and floating types of {name} are supported, got {mask.dtype}")
    if tuple(mask.shape) not in shapes:
        expected = " or ".join(map(str, shapes))
        raise UsageError(f"{_WHERE}: expected {name} of shape {expected}, got {tuple(mask.shape)}")

"""Transformers. # B batch, S steps of the source, T of the target, E d_model, H heads"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

from resilin.core.dtype import get_default_dtype
from resilin.core.ops import creation
from resilin.core.tensor import Tensor
from resilin.nn import init
from resilin.nn.functional import gelu, relu
from resilin.nn.modules.attention import MultiheadAttention
from resilin.nn.modules.container import ModuleList
from resilin.nn.modules.dropout import Dropout
from resilin.nn.modules.linear import Linear
from resilin.nn.modules.module import Module
from resilin.nn.modules.normalization import LayerNorm

Activation = str | Callable[[Tensor], Tensor]


def _activation(where: str, activation: Activation) -> Callable[[Tensor], Tensor]:
    if callable(activation):
        return activation
    if activation not in ("relu", "gelu"):
        raise RuntimeError(f"{where}: activation must be 'relu', 'gelu' or a function, got {activation!r}")
    return relu if activation == "relu" else gelu


def _causal_mask(size: int, device: Any = None, dtype: Any = None) -> Tensor:
    """(size, size), -inf above the diagonal, else 0."""
    dtype = get_default_dtype() if dtype is None else dtype
    mask: Tensor = creation.full((size, size), -math.inf, dtype=dtype, device=device).triu(1)
    return mask


def _is_causal(mask: Tensor | None, is_causal: bool | None, batch_first: bool, x: Tensor) -> bool:
    """`is_causal` if given; otherwise whether `mask` is the causal mask of x's length."""
    if is_causal is not None or mask is None:
        return bool(is_causal)
    steps = x.shape[1] if batch_first and x.dim() == 3 else x.shape[0]
    if tuple(mask.shape) != (steps, steps):
        return False
    forbidden = mask.logical_not() if not mask.is_floating_point() else mask == 0
    allowed = creation.ones(steps, steps, dtype="bool", device=mask.device).tril()
    at_minus_infinity = mask.is_floating_point() and bool((mask == -math.inf).logical_not().equal(allowed))
    return bool(forbidden.equal(allowed)) and (at_minus_infinity or not mask.is_floating_point())


class _Layer(Module):
    """What the layers of encoder and decoder share: the feed-forward part and where the norms stand."""

    def _init_feed_forward(self, E: int, width: int, dropout: float, bias: bool, options: dict[str, Any]) -> None:
        self.linear1 = Linear(E, width, bias=bias, **options)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(width, E, bias=bias, **options)

    def _init_norms(self, count: int, E: int, eps: float, dropout: float, bias: bool, options: dict[str, Any]) -> None:
        for number in range(1, count + 1):
            setattr(self, f"norm{number}", LayerNorm(E, eps=eps, bias=bias, **options))
        for number in range(1, count + 1):
            setattr(self, f"dropout{number}", Dropout(dropout))

    def _feed_forward(self, x: Tensor) -> Tensor:
        return self.linear2(self.dropout(self.activation(self.linear1(x))))  # type: ignore[no-any-return]

    def _residual(self, number: int, x: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
        """x + dropout(part(x)), with the norm of this number before `part` or after the sum."""
        norm, dropout = getattr(self, f"norm{number}"), getattr(self, f"dropout{number}")
        y: Tensor = x + dropout(part(norm(x))) if self.norm_first else norm(x + dropout(part(x)))
        return y


class TransformerEncoderLayer(_Layer):
    """Self-attention and a feed-forward part, each with a residual connection and a layer norm.

    Shape: src (S, B, E), with batch_first (B, S, E), without batch (S, E); the result alike. src_mask (S, S) or
    (B * H, S, S) and src_key_padding_mask (B, S): True forbids, a float is added to the scores. is_causal: src_mask is
    the causal mask. norm_first: norms stand before the parts instead of after the sums.
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = relu,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        options = {"device": device, "dtype": dtype}
        self.self_attn = MultiheadAttention(d_model, nhead, dropout, bias, batch_first=batch_first, **options)
        self._init_feed_forward(d_model, dim_feedforward, dropout, bias, options)
        self.norm_first = norm_first
        self._init_norms(2, d_model, layer_norm_eps, dropout, bias, options)
        self.activation = _activation("TransformerEncoderLayer", activation)

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """See the class."""

        def attend(x: Tensor) -> Tensor:
            found: Tensor = self.self_attn(x, x, x, src_key_padding_mask, False, src_mask, is_causal=is_causal)[0]
            return found

        return self._residual(2, self._residual(1, src, attend), self._feed_forward)


class TransformerDecoderLayer(_Layer):
    """Self-attention, attention to the encoder's result and a feed-forward part, with residuals and layer norms.

    Shape: tgt (T, B, E), memory (S, B, E), with batch_first (B, T, E), (B, S, E), without batch (T, E), (S, E).
    tgt_mask (T, T), memory_mask (T, S), tgt_key_padding_mask (B, T), memory_key_padding_mask (B, S); see
    `TransformerEncoderLayer`.
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = relu,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        options = {"device": device, "dtype": dtype}
        self.self_attn = MultiheadAttention(d_model, nhead, dropout, bias, batch_first=batch_first, **options)
        self.multihead_attn = MultiheadAttention(d_model, nhead, dropout, bias, batch_first=batch_first, **options)
        self._init_feed_forward(d_model, dim_feedforward, dropout, bias, options)
        self.norm_first = norm_first
        self._init_norms(3, d_model, layer_norm_eps, dropout, bias, options)
        self.activation = _activation("TransformerDecoderLayer", activation)

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """See the class."""

        def attend(x: Tensor) -> Tensor:
            found: Tensor = self.self_attn(x, x, x, tgt_key_padding_mask, False, tgt_mask, is_causal=tgt_is_causal)[0]
            return found

        def recall(x: Tensor) -> Tensor:
            masks = (memory_key_padding_mask, False, memory_mask)
            found: Tensor = self.multihead_attn(x, memory, memory, *masks, is_causal=memory_is_causal)[0]
            return found

        x = self._residual(2, self._residual(1, tgt, attend), recall)
        return self._residual(3, x, self._feed_forward)


class TransformerEncoder(Module):
    """`num_layers` copies of a layer, one after the other, and a norm at the end if given.

    is_causal None: found out from `mask`. enable_nested_tensor and mask_check are taken and change nothing: there are
    no nested tensors here.
    """

    def __init__(
        self,
        encoder_layer: TransformerEncoderLayer,
        num_layers: int,
        norm: Module | None = None,
        enable_nested_tensor: bool = True,
        mask_check: bool = True,
    ) -> None:
        super().__init__()
        self.layers = ModuleList([copy.deepcopy(encoder_layer) for _ in range(num_layers)])
        self.num_layers = num_layers
        self.norm = norm
        self.enable_nested_tensor = enable_nested_tensor
        self.mask_check = mask_check

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:
        """See `TransformerEncoderLayer`."""
        causal = False
        x = src
        for number, layer in enumerate(self.layers):
            if number == 0:
                causal = _is_causal(mask, is_causal, layer.self_attn.batch_first, src)
            x = layer(x, src_mask=mask, src_key_padding_mask=src_key_padding_mask, is_causal=causal)
        return x if self.norm is None else self.norm(x)


class TransformerDecoder(Module):
    """`num_layers` copies of a layer, one after the other, and a norm at the end if given.

    tgt_is_causal None: found out from `tgt_mask`.
    """

    def __init__(self, decoder_layer: TransformerDecoderLayer, num_layers: int, norm: Module | None = None) -> None:
        super().__init__()
        self.layers = ModuleList([copy.deepcopy(decoder_layer) for _ in range(num_layers)])
        self.num_layers = num_layers
        self.norm = norm

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """See `TransformerDecoderLayer`."""
        causal = False
        x = tgt
        for number, layer in enumerate(self.layers):
            if number == 0:
                causal = _is_causal(tgt_mask, tgt_is_causal, layer.self_attn.batch_first, tgt)
            masks = (tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask)
            x = layer(x, memory, *masks, causal, memory_is_causal)
        return x if self.norm is None else self.norm(x)


class Transformer(Module):
    """Encoder and decoder (Vaswani et al., 2017). custom_encoder, custom_decoder: modules to use instead of the usual.

    Shape: src (S, B, E), tgt (T, B, E) -> (T, B, E), with batch_first (B, S, E), ...; masks as in the layers. Matrices
    start Xavier uniform.
    """

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = relu,
        custom_encoder: Any | None = None,
        custom_decoder: Any | None = None,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        options = {"device": device, "dtype": dtype}
        sizes = (d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, bias)
        self.encoder: Any = custom_encoder
        self.decoder: Any = custom_decoder
        if custom_encoder is None:
            norm = LayerNorm(d_model, eps=layer_norm_eps, bias=bias, **options)
            encoder_layer = TransformerEncoderLayer(*sizes, **options)
            self.encoder = TransformerEncoder(encoder_layer, num_encoder_layers, norm)
        if custom_decoder is None:
            norm = LayerNorm(d_model, eps=layer_norm_eps, bias=bias, **options)
            decoder_layer = TransformerDecoderLayer(*sizes, **options)
            self.decoder = TransformerDecoder(decoder_layer, num_decoder_layers, norm)
        for weight in self.parameters():
            if weight.dim() > 1:
                init.xavier_uniform_(weight)
        self.d_model = d_model
        self.nhead = nhead
        self.batch_first = batch_first

    def forward(
        self,
        src: Tensor,
        tgt: Tensor,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        src_is_causal: bool | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """See the class."""
        given = f"src {tuple(src.shape)}, tgt {tuple(tgt.shape)}"
        batch = 0 if self.batch_first else 1
        if src.dim() == 3 and tgt.dim() == 3 and src.shape[batch] != tgt.shape[batch]:
            raise RuntimeError(f"Transformer: src and tgt must have the same batch size, got {given}")
        if src.shape[-1] != self.d_model or tgt.shape[-1] != self.d_model:
            raise RuntimeError(f"Transformer: the last dimension must be d_model={self.d_model}, got {given}")
        memory = self.encoder(src, src_mask, src_key_padding_mask, is_causal=src_is_causal)
        masks = (tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask)
        result: Tensor = self.decoder(tgt, memory, *masks, tgt_is_causal, memory_is_causal)
        return result

    @staticmethod
    def generate_square_subsequent_mask(sz: int, device: Any = None, dtype: Any = None) -> Tensor:
        """(sz, sz), -inf above the diagonal, else 0: step t may look at steps 0 to t."""
        return _causal_mask(sz, device, dtype)

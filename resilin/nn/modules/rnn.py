"""Recurrent layers over whole sequences."""

# T steps, B sequences, F input_size, H hidden_size, P width of the output of one direction, D directions, L layers

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any

from resilin.core.api.nn import recurrent
from resilin.core.autocast import state as autocast
from resilin.core.ops import creation
from resilin.core.tensor import Parameter, Tensor
from resilin.nn import init
from resilin.nn.modules.module import Module
from resilin.nn.utils.rnn import PackedSequence

if TYPE_CHECKING:  # what the table of places adds; written by scripts/type_stubs.py
    from resilin.nn import GRUCell as GRUCell
    from resilin.nn import LSTMCell as LSTMCell
    from resilin.nn import RNNCell as RNNCell
    from resilin.nn import RNNCellBase as RNNCellBase

_GATES = {"LSTM": 4, "GRU": 3, "RNN_TANH": 1, "RNN_RELU": 1}
_KINDS = {"LSTM": "lstm", "GRU": "gru", "RNN_TANH": "tanh", "RNN_RELU": "relu"}


class RNNBase(Module):
    """What RNN, LSTM and GRU share. Every layer and direction runs over a whole sequence in one fused operation.

    Shape: input (T, B, F), with batch_first (B, T, F), for one sequence (T, F), or a PackedSequence; gives the outputs
    with D * P as their last dimension and the last state (L * D, B, P). hx, the first state, is zero if left out.
    Parameters: weight_ih_l0 (gates * H, F), weight_hh_l0 (gates * H, P), bias_ih_l0, bias_hh_l0 (gates * H,), with
    proj_size weight_hr_l0 (P, H); of the other direction weight_ih_l0_reverse, ... All start uniform in +-1/sqrt(H).
    dropout: the probability with which elements between layers are dropped while training.
    """

    def __init__(
        self,
        mode: str,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if mode not in _GATES:
            raise ValueError(f"RNNBase: mode must be one of {sorted(_GATES)}, got {mode!r}")
        self.mode = mode
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.bias = bias
        self.batch_first = batch_first
        self.dropout = float(dropout)
        self.bidirectional = bidirectional
        self.proj_size = proj_size
        self._check_options(dropout)
        self._all_weights: list[list[str]] = []
        for layer in range(num_layers):
            for suffix in ("", "_reverse")[: self._directions]:
                self._all_weights.append(self._make_weights(layer, suffix, device, dtype))
        self.reset_parameters()

    @property
    def _directions(self) -> int:
        return 2 if self.bidirectional else 1

    def _check_options(self, dropout: Any) -> None:
        name = type(self).__name__
        if isinstance(dropout, bool) or not 0 <= dropout <= 1:
            raise ValueError(f"{name}: dropout must be a number from 0 to 1, got {dropout!r}")
        if dropout > 0 and self.num_layers == 1:
            warnings.warn(
                f"{name}: dropout is applied between layers, so dropout={dropout} does nothing with num_layers=1",
                stacklevel=4,
            )
        if not hasattr(self.hidden_size, "__index__"):
            raise TypeError(f"{name}: hidden_size must be an int, got {type(self.hidden_size).__name__}")
        for option in ("bias", "batch_first"):
            if not isinstance(getattr(self, option), bool):
                raise TypeError(f"{name}: {option} must be a bool, got {getattr(self, option)!r}")
        for option in ("hidden_size", "num_layers"):
            if getattr(self, option) <= 0:
                raise ValueError(f"{name}: {option} must be greater than zero, got {getattr(self, option)}")
        if not 0 <= self.proj_size < self.hidden_size:
            raise ValueError(f"{name}: proj_size must be from 0 to hidden_size - 1, got {self.proj_size}")

    def _make_weights(self, layer: int, suffix: str, device: Any, dtype: Any) -> list[str]:
        width = self.proj_size or self.hidden_size
        rows = _GATES[self.mode] * self.hidden_size
        shapes: dict[str, tuple[int, ...]] = {
            "weight_ih": (rows, self.input_size if layer == 0 else width * self._directions),
            "weight_hh": (rows, width),
        }
        if self.bias:
            shapes |= {"bias_ih": (rows,), "bias_hh": (rows,)}
        if self.proj_size:
            shapes["weight_hr"] = (self.proj_size, self.hidden_size)
        for name, shape in shapes.items():
            setattr(self, f"{name}_l{layer}{suffix}", Parameter(creation.empty(*shape, device=device, dtype=dtype)))
        return [f"{name}_l{layer}{suffix}" for name in shapes]

    def reset_parameters(self) -> None:
        """Draw the start values anew."""
        bound = 1 / math.sqrt(self.hidden_size) if self.hidden_size > 0 else 0
        for weight in self.parameters():
            init.uniform_(weight, -bound, bound)

    def flatten_parameters(self) -> None:
        """Nothing: the parameters need not lie in one block of memory here, every product reads them where they are."""

    @property
    def all_weights(self) -> list[list[Parameter]]:
        """The parameters of each layer and direction."""
        return [[getattr(self, name) for name in names] for names in self._all_weights]

    def _weights(self) -> list[list[Tensor | None]]:
        """Per layer and direction w_ih, w_hh, b_ih, b_hh, w_hr, None where there is none."""
        found = []
        for names in self._all_weights:
            by_name = {name.rpartition("_l")[0]: getattr(self, name) for name in names}
            order = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
            found.append([by_name.get(name) for name in order])
        return found

    def _run(self, input: Any, hx: Any) -> tuple[Any, Tensor, Tensor | None]:
        """Outputs, last states and, of an lstm, last cells, shaped as `input` and `hx` ask."""
        packed = isinstance(input, PackedSequence)
        self._check_input(input.data if packed else input, packed)
        if packed:
            return self._run_packed(input, hx)
        single = input.dim() == 2
        x = input.unsqueeze(1) if single else input.transpose(0, 1) if self.batch_first else input
        steps, batch = x.shape[0], x.shape[1]
        if steps == 0:
            raise RuntimeError(f"{type(self).__name__}: expected at least one step, got input of {tuple(input.shape)}")
        h0, c0 = self._states(hx, batch, x, single)
        rows = x.reshape(steps * batch, x.shape[2])
        y, h, c = self._layers(rows, (batch,) * steps, h0, c0)
        y = y.reshape(steps, batch, y.shape[1])
        if single:
            return y[:, 0], h[:, 0], None if c is None else c[:, 0]
        return y.transpose(0, 1) if self.batch_first else y, h, c

    def _run_packed(self, input: PackedSequence, hx: Any) -> tuple[PackedSequence, Tensor, Tensor | None]:
        sizes = tuple(input.batch_sizes.tolist())
        h0, c0 = self._states(hx, sizes[0], input.data, False)
        if hx is not None and input.sorted_indices is not None:
            h0 = h0.index_select(1, input.sorted_indices)
            c0 = None if c0 is None else c0.index_select(1, input.sorted_indices)
        y, h, c = self._layers(input.data, sizes, h0, c0)
        if input.unsorted_indices is not None:
            h = h.index_select(1, input.unsorted_indices)
            c = None if c is None else c.index_select(1, input.unsorted_indices)
        return PackedSequence(y, input.batch_sizes, input.sorted_indices, input.unsorted_indices), h, c

    def _layers(self, rows: Tensor, sizes: tuple[int, ...], h0: Tensor, c0: Tensor | None) -> Any:
        p = self.dropout if self.training else 0.0
        return recurrent.layers(_KINDS[self.mode], rows, sizes, h0, c0, self._weights(), self._directions, p)

    def _check_input(self, x: Tensor, packed: bool) -> None:
        name, weight = type(self).__name__, self.weight_ih_l0
        if x.dtype != weight.dtype and not autocast.here.enabled:
            raise ValueError(f"{name}: input is {x.dtype}, the parameters are {weight.dtype}; expected the same dtype")
        expected = (2,) if packed else (2, 3)
        if x.dim() not in expected:
            text = "2" if packed else "2 (one sequence) or 3"
            raise (RuntimeError if packed else ValueError)(
                f"{name}: expected input of {text} dimensions, got shape {tuple(x.shape)}"
            )
        if x.shape[-1] != self.input_size:
            raise RuntimeError(
                f"{name}: the last dimension of input must be input_size={self.input_size}, got shape {tuple(x.shape)}"
            )

    def _states(self, hx: Any, batch: int, x: Tensor, single: bool) -> tuple[Tensor, Tensor | None]:
        """First state (L * D, B, P) and cells (L * D, B, H; of an lstm only), checked, or zeros."""
        count = self.num_layers * self._directions
        widths = {"state": self.proj_size or self.hidden_size}
        if self.mode == "LSTM":
            widths["cells"] = self.hidden_size
        if hx is None:
            made = [creation.zeros(count, batch, width, dtype=x.dtype, device=x.device) for width in widths.values()]
            return made[0], made[1] if len(made) > 1 else None
        given = hx if self.mode == "LSTM" else (hx,)
        if not isinstance(given, tuple | list) or len(given) != len(widths):
            raise RuntimeError(f"{type(self).__name__}: hx must be a pair (state, cells), got {type(hx).__name__}")
        found: list[Tensor] = []
        for (name, width), value in zip(widths.items(), given, strict=True):
            shape = (count, width) if single else (count, batch, width)
            if not isinstance(value, Tensor) or tuple(value.shape) != shape:
                got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
                raise RuntimeError(
                    f"{type(self).__name__}: expected hidden {name} of shape {shape} for input {tuple(x.shape)}, "
                    f"got {got}"
                )
            if value.dtype != x.dtype and not autocast.here.enabled:
                raise RuntimeError(f"{type(self).__name__}: hidden {name} is {value.dtype}, input is {x.dtype}")
            found.append(value.unsqueeze(1) if single else value)
        return found[0], found[1] if len(found) > 1 else None

    def extra_repr(self) -> str:
        """As in PyTorch."""
        text = f"{self.input_size}, {self.hidden_size}"
        plain = {"proj_size": 0, "num_layers": 1, "bias": True, "batch_first": False, "dropout": 0}
        for name, default in (plain | {"bidirectional": False}).items():
            if (value := getattr(self, name)) != default:
                text += f", {name}={value}"
        return text


class RNN(RNNBase):
    """h_t = tanh(W_ih x_t + b_ih + W_hh h_(t-1) + b_hh), or with relu; see `RNNBase`. Gives (outputs, last state)."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"RNN: nonlinearity must be 'tanh' or 'relu', got {nonlinearity!r}")
        mode = f"RNN_{nonlinearity.upper()}"
        options = (num_layers, bias, batch_first, dropout, bidirectional)
        super().__init__(mode, input_size, hidden_size, *options, device=device, dtype=dtype)
        self.nonlinearity = nonlinearity

    def forward(self, input: Any, hx: Tensor | None = None) -> tuple[Any, Tensor]:
        """See the class."""
        return self._run(input, hx)[:2]


class GRU(RNNBase):
    """A gated recurrent unit (Cho et al., 2014); see `RNNBase`. Gives (outputs, last state).

    r, z = sigmoid(...), n = tanh(W_in x + b_in + r * (W_hn h + b_hn)), h = (1 - z) * n + z * h; rows of the weights: r,
    z, n.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        options = (num_layers, bias, batch_first, dropout, bidirectional)
        super().__init__("GRU", input_size, hidden_size, *options, device=device, dtype=dtype)

    def forward(self, input: Any, hx: Tensor | None = None) -> tuple[Any, Tensor]:
        """See the class."""
        return self._run(input, hx)[:2]


class LSTM(RNNBase):
    """Long short-term memory (Hochreiter and Schmidhuber, 1997); see `RNNBase`.

    i, f, o = sigmoid(...), g = tanh(...), c = f * c + i * g, h = o * tanh(c), with proj_size h = W_hr (o * tanh(c)).
    Rows of the weights: i, f, g, o. hx is (state (L * D, B, P), cells (L * D, B, H)); gives (outputs, (last state,
    last cells)).
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        options = (num_layers, bias, batch_first, dropout, bidirectional, proj_size)
        super().__init__("LSTM", input_size, hidden_size, *options, device=device, dtype=dtype)

    def forward(self, input: Any, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Any, tuple[Tensor, Tensor]]:
        """See the class."""
        y, h, c = self._run(input, hx)
        return y, (h, c)  # type: ignore[return-value]

"""Single steps of recurrent layers."""

# B samples, F input_size, H hidden_size

from __future__ import annotations

import math
from typing import Any

from resilin.core.api.nn import recurrent
from resilin.core.ops import creation
from resilin.core.tensor import Parameter, Tensor
from resilin.nn import init
from resilin.nn.modules.module import Module


class RNNCellBase(Module):
    """What the cells share: weight_ih (gates * H, F), weight_hh (gates * H, H), bias_ih, bias_hh (gates * H,).

    Shape: input (B, F) or (F,), state (B, H) or (H,), zero if left out. Parameters start uniform in +-1/sqrt(H).
    """

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool, num_chunks: int, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.bias = bias
        rows = num_chunks * hidden_size
        self.weight_ih = Parameter(creation.empty(rows, input_size, device=device, dtype=dtype))
        self.weight_hh = Parameter(creation.empty(rows, hidden_size, device=device, dtype=dtype))
        self.register_parameter(
            "bias_ih", Parameter(creation.empty(rows, device=device, dtype=dtype)) if bias else None
        )
        self.register_parameter(
            "bias_hh", Parameter(creation.empty(rows, device=device, dtype=dtype)) if bias else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the start values anew."""
        bound = 1 / math.sqrt(self.hidden_size) if self.hidden_size > 0 else 0
        for weight in self.parameters():
            init.uniform_(weight, -bound, bound)

    def _step(self, function: Any, input: Tensor, states: tuple[Tensor | None, ...]) -> Any:
        """`function` over a batch; what it gives without the batch dimension if `input` has none."""
        name = type(self).__name__
        if input.dim() not in (1, 2) or input.shape[-1] != self.input_size:
            raise RuntimeError(
                f"{name}: expected input of shape (B, {self.input_size}) or ({self.input_size},), got "
                f"{tuple(input.shape)}"
            )
        shape = (*input.shape[:-1], self.hidden_size)
        given = []
        for state in states:
            if state is None:
                state = creation.zeros(*shape, dtype=input.dtype, device=input.device)
            elif tuple(state.shape) != shape:
                raise RuntimeError(
                    f"{name}: input of shape {tuple(input.shape)} needs hx of shape {shape}, got {tuple(state.shape)}"
                )
            given.append(state if state.dim() == 2 else state.unsqueeze(0))
        single = input.dim() == 1
        hx = given[0] if len(given) == 1 else tuple(given)
        weights = (self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)
        found = function(input.unsqueeze(0) if single else input, hx, *weights)
        if not single:
            return found
        return found[0] if isinstance(found, Tensor) else tuple(value[0] for value in found)

    def extra_repr(self) -> str:
        """As in PyTorch."""
        text = f"{self.input_size}, {self.hidden_size}"
        if self.bias is not True:
            text += f", bias={self.bias}"
        if getattr(self, "nonlinearity", "tanh") != "tanh":
            text += f", nonlinearity={self.nonlinearity}"
        return text


class RNNCell(RNNCellBase):
    """tanh(W_ih x + b_ih + W_hh h + b_hh), or with relu; see `RNNCellBase`."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, 1, device, dtype)
        self.nonlinearity = nonlinearity

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        """The next state."""
        functions = {"tanh": recurrent.rnn_tanh_cell, "relu": recurrent.rnn_relu_cell}
        if self.nonlinearity not in functions:
            raise RuntimeError(f"RNNCell: nonlinearity must be 'tanh' or 'relu', got {self.nonlinearity!r}")
        result: Tensor = self._step(functions[self.nonlinearity], input, (hx,))
        return result


class GRUCell(RNNCellBase):
    """One step of `GRU`; see `RNNCellBase`."""

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__(input_size, hidden_size, bias, 3, device, dtype)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        """The next state."""
        result: Tensor = self._step(recurrent.gru_cell, input, (hx,))
        return result


class LSTMCell(RNNCellBase):
    """One step of `LSTM`; see `RNNCellBase`. hx is (state, cells), and so is what it gives."""

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__(input_size, hidden_size, bias, 4, device, dtype)

    def forward(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """The next state and cells."""
        result: tuple[Tensor, Tensor] = self._step(
            recurrent.lstm_cell, input, (None, None) if hx is None else tuple(hx)
        )
        return result

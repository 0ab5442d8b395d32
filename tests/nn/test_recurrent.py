"""Packing, dropout, second derivatives and mistakes around recurrent layers."""

import numpy as np
import pytest

import resilin
from resilin import autograd, nn
from resilin.core.kernels.loader import native
from resilin.nn.utils import rnn


def ragged(*lengths):
    return [resilin.arange(length * 2, dtype=resilin.float64).reshape(length, 2) + 10 * length for length in lengths]


def test_packing_puts_the_first_steps_of_the_longest_sequences_first():
    packed = rnn.pack_sequence([resilin.tensor([1, 2]), resilin.tensor([3, 4, 5])], enforce_sorted=False)
    assert packed.data.tolist() == [3, 1, 4, 2, 5]
    assert packed.batch_sizes.tolist() == [2, 2, 1]
    assert packed.sorted_indices.tolist() == [1, 0]
    assert packed.unsorted_indices.tolist() == [1, 0]


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("lengths", [(3, 1, 2), (2,), (2, 2), (1, 5)])
def test_unpacking_undoes_packing(lengths, batch_first):
    parts = ragged(*lengths)
    for part, back in zip(parts, rnn.unpack_sequence(rnn.pack_sequence(parts, enforce_sorted=False)), strict=True):
        assert part.tolist() == back.tolist()
    padded = rnn.pad_sequence(parts, batch_first, -1.0)
    packed = rnn.pack_padded_sequence(padded, lengths, batch_first, enforce_sorted=False)
    again, found = rnn.pad_packed_sequence(packed, batch_first, -1.0)
    assert again.tolist() == padded.tolist()
    assert found.tolist() == list(lengths)
    for part, back in zip(parts, rnn.unpad_sequence(padded, found, batch_first), strict=True):
        assert part.tolist() == back.tolist()


def test_sequences_are_padded_on_the_left_on_request():
    padded = rnn.pad_sequence([resilin.tensor([1]), resilin.tensor([2, 3])], True, 9, padding_side="left")
    assert padded.tolist() == [[9, 1], [2, 3]]


def test_total_length_lengthens_the_padding():
    padded, _ = rnn.pad_packed_sequence(rnn.pack_sequence(ragged(2, 1)), total_length=4)
    assert tuple(padded.shape) == (4, 2, 2)
    assert padded[2:].abs().sum().item() == 0


def test_gradients_pass_through_packing_and_padding():
    x = resilin.randn(3, 2, 2, dtype=resilin.float64, requires_grad=True)

    def there_and_back(x):
        return rnn.pad_packed_sequence(rnn.pack_padded_sequence(x, [1, 3], enforce_sorted=False))[0]

    assert autograd.gradcheck(there_and_back, (x,))


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_a_packed_batch_gives_what_each_sequence_gives_alone(kind):
    layer = getattr(nn, kind)(2, 3, num_layers=2, bidirectional=True).double()
    parts = ragged(3, 1, 4)
    y, last = layer(rnn.pack_sequence(parts, enforce_sorted=False))
    last = last[0] if kind == "LSTM" else last
    for number, (part, together) in enumerate(zip(parts, rnn.unpack_sequence(y), strict=True)):
        alone, end = layer(part)
        end = end[0] if kind == "LSTM" else end
        np.testing.assert_allclose(together.detach().numpy(), alone.detach().numpy(), atol=1e-12)
        np.testing.assert_allclose(last[:, number].detach().numpy(), end.detach().numpy(), atol=1e-12)


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_a_layer_can_be_differentiated_twice(kind):
    layer = getattr(nn, kind)(2, 2).double()
    x = resilin.randn(2, 2, 2, dtype=resilin.float64, requires_grad=True)
    assert autograd.gradgradcheck(lambda x: layer(x)[0], (x,))


def test_dropout_acts_between_layers_and_only_while_training():
    resilin.manual_seed(0)
    layer = nn.LSTM(2, 8, num_layers=2, dropout=0.5)
    x = resilin.randn(3, 2, 2)
    assert layer(x)[0].tolist() != layer(x)[0].tolist()
    layer.eval()
    assert layer(x)[0].tolist() == layer(x)[0].tolist()
    with pytest.warns(UserWarning, match="between layers"):
        nn.GRU(2, 3, dropout=0.5)


@pytest.mark.skipif(native is None, reason="without native code products are OpenBLAS's: their bits depend on threads")
def test_the_number_of_threads_does_not_change_a_bit_of_a_layers_gradients():
    def bits(threads):
        resilin.set_num_threads(threads)
        resilin.manual_seed(0)
        layer = nn.LSTM(64, 128)
        layer(resilin.randn(20, 64, 64))[0].sum().backward()
        return [parameter.grad.numpy().tobytes() for parameter in layer.parameters()]

    before = resilin.get_num_threads()
    try:
        assert bits(1) == bits(2)
    finally:
        resilin.set_num_threads(before)


def test_cells_are_functions_too():
    cell = nn.GRUCell(2, 3)
    x, h = resilin.randn(4, 2), resilin.randn(4, 3)
    weights = (cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh)
    assert resilin.gru_cell(x, h, *weights).tolist() == cell(x, h).tolist()
    with pytest.raises(RuntimeError, match=r"lstm_cell: .* need cx of shape \(4, 3\)"):
        resilin.lstm_cell(x, (h, x), resilin.ones(12, 2), resilin.ones(12, 3))


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: nn.LSTM(2, 3)(resilin.ones(4, 5, 7)), RuntimeError, "input_size=2"),
        (lambda: nn.LSTM(2, 3)(resilin.ones(2)), ValueError, "dimensions"),
        (lambda: nn.LSTM(2, 3)(resilin.ones(0, 1, 2)), RuntimeError, "at least one step"),
        (lambda: nn.GRU(2, 3)(resilin.ones(4, 5, 2), resilin.ones(1, 4, 3)), RuntimeError, r"\(1, 5, 3\)"),
        (lambda: nn.LSTM(2, 3)(resilin.ones(4, 5, 2), resilin.ones(1, 5, 3)), RuntimeError, "pair"),
        (lambda: nn.GRU(2, 3)(resilin.ones(4, 5, 2).double()), ValueError, "float64"),
        (lambda: nn.RNN(2, 3, nonlinearity="sine"), ValueError, "sine"),
        (lambda: nn.LSTM(2, 3, proj_size=3), ValueError, "proj_size"),
        (lambda: nn.LSTM(2, 0), ValueError, "hidden_size"),
        (lambda: nn.LSTM(2, 3, num_layers=2, dropout=2), ValueError, "dropout"),
        (lambda: nn.LSTMCell(2, 3)(resilin.ones(4, 3)), RuntimeError, r"\(4, 3\)"),
        (lambda: nn.GRUCell(2, 3)(resilin.ones(4, 2), resilin.ones(5, 3)), RuntimeError, r"\(5, 3\)"),
        (lambda: rnn.pack_padded_sequence(resilin.ones(3, 2), [1, 2]), RuntimeError, "enforce_sorted"),
        (lambda: rnn.pack_padded_sequence(resilin.ones(3, 2), [2, 0]), RuntimeError, "greater than 0"),
        (lambda: rnn.pack_padded_sequence(resilin.ones(3, 2), [4, 1]), RuntimeError, "exceeds"),
        (lambda: rnn.pack_padded_sequence(resilin.ones(3, 2), [1]), RuntimeError, "2 integer lengths"),
        (lambda: rnn.pad_sequence([resilin.ones(2, 2), resilin.ones(2, 3)]), RuntimeError, "number 1"),
        (lambda: rnn.pad_packed_sequence(rnn.pack_sequence(ragged(3)), total_length=2), ValueError, "total_length"),
    ],
)
def test_mistakes_are_named_at_the_call(call, error, text):
    with pytest.raises(error, match=text):
        call()


def _complex(*shape, seed=0):
    draw = np.random.default_rng(seed).standard_normal
    return resilin.tensor(0.5 * (draw(shape) + 1j * draw(shape)), dtype=resilin.complex128, requires_grad=True)


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_of_complex_numbers_have_conjugated_derivatives(layer):
    net = layer(2, 3, num_layers=2, bidirectional=True, dtype=resilin.complex128)
    x = _complex(4, 2, 2)
    weights = [_complex(*p.shape, seed=number) for number, p in enumerate(net.parameters())]
    names = [name for name, _ in net.named_parameters()]

    def run(x, *weights):
        out, state = resilin.func.functional_call(net, dict(zip(names, weights, strict=True)), (x,))
        return (out, *state) if isinstance(state, tuple) else (out, state)

    assert autograd.gradcheck(run, (x, *weights))
    assert autograd.gradgradcheck(run, (x, *weights))


@pytest.mark.parametrize("cell", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_a_cell_of_complex_numbers_takes_the_step_that_its_layer_takes(cell):
    one = cell(2, 3, dtype=resilin.complex128)
    layer = {nn.LSTMCell: nn.LSTM, nn.GRUCell: nn.GRU, nn.RNNCell: nn.RNN}[cell](2, 3, dtype=resilin.complex128)
    layer.load_state_dict({f"{name}_l0": value for name, value in one.state_dict().items()})
    x = _complex(2, 2)
    found, (expected, _) = one(x), layer(x.unsqueeze(0))
    found = found[0] if isinstance(found, tuple) else found
    np.testing.assert_array_equal(found.detach().numpy(), expected[0].detach().numpy())


def test_the_rectifier_of_complex_numbers_is_refused():
    with pytest.raises(NotImplementedError, match="relu of complex128: supported are real numbers"):
        nn.RNN(2, 3, nonlinearity="relu", dtype=resilin.complex128)(_complex(4, 2, 2))

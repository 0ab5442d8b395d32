"""Arguments that would be misread are refused, as in PyTorch; numbers that are tensors of one integer are taken."""

import pytest

import resilin
from resilin.nn import functional

X = resilin.arange(6.0).reshape(2, 3)
ONE = resilin.tensor(1)
NAN = resilin.tensor([[float("nan"), 1.0], [1.0, 2.0]])


@pytest.mark.parametrize("name", ["sum", "mean", "any", "all", "amax", "std", "var", "argmax", "logsumexp", "norm"])
@pytest.mark.parametrize("dim", [resilin.tensor([]), resilin.tensor([0, 1]), 0.5, "a"])
def test_a_dimension_that_is_no_integer_is_refused(name, dim):
    with pytest.raises(TypeError, match="argument 'dim' must be int, not"):
        getattr(X, name)(dim=dim)


def test_functions_of_one_dimension_refuse_several():
    for call in (lambda: X.argmax([]), lambda: X.cumsum([0]), lambda: resilin.tensor(1.0).softmax((2, 3))):
        with pytest.raises(TypeError, match="argument 'dim' must be int"):
            call()
    with pytest.raises(TypeError, match="must be int, not str"):
        resilin.tensor(1.0).transpose(0, "junk")


@pytest.mark.parametrize("name", ["sum", "mean", "std", "any", "amax", "norm", "squeeze", "unbind", "cumsum", "argmax"])
def test_a_tensor_of_one_integer_is_a_dimension(name):
    given, expected = (getattr(X, name)(dim=dim) for dim in (ONE, 1))
    pairs = zip(given, expected, strict=True) if name == "unbind" else [(given, expected)]
    assert all(resilin.equal(a, b) for a, b in pairs)


def test_tensors_of_one_integer_say_how_far_to_roll_and_how_many_points_to_transform():
    assert resilin.equal(X.roll(ONE, ONE), X.roll(1, 1))
    assert resilin.equal(resilin.fft.hfft(X, n=resilin.tensor(4), dim=ONE), resilin.fft.hfft(X, n=4, dim=1))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: resilin.max(X, X, X), TypeError, "third argument"),
        (lambda: resilin.min(X, 1, X), TypeError, "third argument"),
        (lambda: resilin.unique(X, 0), TypeError, "'sorted' must be bool"),
        (lambda: X.flip(), TypeError, "'dims'"),
        (lambda: X.tile(), TypeError, "'dims'"),
        (lambda: resilin.rot90(X, 2.5), TypeError, "float"),
        (lambda: resilin.rot90(X, None), TypeError, "'k' must be int, not NoneType"),
        (lambda: resilin.topk(X, None), TypeError, "'k' must be int, not NoneType"),
        (lambda: resilin.topk(X, 1.5), TypeError, "'k' must be int, not float"),
        (lambda: resilin.kthvalue(X, None), TypeError, "'k' must be int, not NoneType"),
        (lambda: functional.group_norm(X, None), TypeError, "'num_groups' must be int, not NoneType"),
        (lambda: functional.dropout1d(X, None), TypeError, "'p' must be Number, not NoneType"),
        (lambda: functional.alpha_dropout(X, None), TypeError, "'p' must be Number, not NoneType"),
        (lambda: functional.dropout(X, None), TypeError, "'p' must be Number, not NoneType"),
        (lambda: resilin.nan_to_num(X, 0.0, X), TypeError, "'posinf' must be a number, got"),
        (lambda: resilin.nan_to_num(X, "a"), TypeError, "'nan' must be a number, got 'a'"),
        (lambda: resilin.roll(resilin.tensor(1.0), 0, 0), IndexError, "none to roll along"),
        (lambda: resilin.roll(resilin.tensor(1.0), (1, 2), (0, 0)), IndexError, "none to roll along"),
        (lambda: resilin.zeros(0, 3, dtype=resilin.int64).median(), RuntimeError, r"^median\(\): .* shape \[0, 3\]"),
        (
            lambda: resilin.zeros(0, dtype=resilin.uint8).nanmedian(),
            RuntimeError,
            r"^nanmedian\(\): .*uint8 has no NaN",
        ),
        (
            lambda: functional.embedding_bag(resilin.tensor([0, 1]), X, resilin.tensor([], dtype=resilin.int64)),
            RuntimeError,
            "2 indices need offsets",
        ),
        (lambda: resilin.linspace(0, 1, 2.5), TypeError, "'steps' must be int"),
        (lambda: functional.elu(X, resilin.ones(3)), TypeError, "'alpha' must be Number"),
        (lambda: functional.softplus(X, resilin.ones(3)), TypeError, "'beta' must be Number"),
        (lambda: functional.threshold(X, resilin.ones(3), 1.0), TypeError, "'threshold' must be Number"),
        (lambda: functional.hardshrink(X, resilin.ones(3)), TypeError, "'lambd' must be Number"),
        (lambda: functional.leaky_relu(X, resilin.ones(3)), TypeError, "'negative_slope' must be Number"),
        (lambda: X.where(object(), X), TypeError, "expected a Tensor"),
        (lambda: resilin.where(X > 1, object(), X), TypeError, "a Tensor or a number"),
        (lambda: resilin.ones(3).fill_(resilin.ones(3)), RuntimeError, "0 dimensions"),
        (
            lambda: resilin.linalg.householder_product(resilin.ones(2, 3, 4, 4), resilin.ones(3, 3)),
            RuntimeError,
            "expected tau of shape",
        ),
        (lambda: resilin.floor_divide(resilin.tensor([1j]), 2), NotImplementedError, "complex"),
        (lambda: resilin.clamp(X, "mean"), TypeError, "limits must be numbers"),
        (lambda: resilin.tensor(1.0).split(1), RuntimeError, "at least a 1-dimensional"),
        (lambda: resilin.trapz(resilin.tensor(1.0)), IndexError, "0 dimensions"),
        (lambda: resilin.pca_lowrank(resilin.ones(3)), ValueError, "expected a matrix"),
        (lambda: "a" in X, TypeError, "expected a number or a Tensor"),
        (lambda: X.type("bad"), ValueError, "invalid type: 'bad'"),
        (lambda: X[::0], ValueError, "slice step cannot be zero"),
        (lambda: resilin.set_num_threads("a"), ValueError, "expected an int"),
        (lambda: resilin.linalg.cholesky(NAN), resilin.linalg.LinAlgError, "not positive definite"),
        (lambda: resilin.linalg.pinv(NAN), resilin.linalg.LinAlgError, "NaN"),
    ],
)
def test_what_would_be_misread_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_errors_of_python_name_the_function_that_was_called():
    with pytest.raises(TypeError, match=r"^bitwise_and\(\) missing"):
        resilin.bitwise_and(X)
    with pytest.raises(TypeError, match=r"^float\(\) takes 1"):
        X.float(1, 2)


def test_determinants_of_nan_have_no_sign():
    sign, logarithm = resilin.linalg.slogdet(NAN)
    assert sign.item() == 0
    assert logarithm.isnan().item()


def test_extremes_of_arguments_are_those_of_pytorch():
    assert resilin.vander(resilin.ones(3), 0).shape == (3, 0)
    assert resilin.histogram(X)[0].shape == (100,)
    assert resilin.round(X, decimals=400).isnan().all()


@pytest.mark.parametrize(
    "name", ["sum", "mean", "prod", "any", "all", "amax", "amin", "argmax", "std", "logsumexp", "norm"]
)
@pytest.mark.parametrize("keepdim", [None, "a", 0.5, 1])
def test_keepdim_is_a_flag(name, keepdim):
    with pytest.raises(TypeError, match=f"^{name}.*argument 'keepdim' must be bool, not {type(keepdim).__name__}"):
        getattr(X, name)(dim=0, keepdim=keepdim)


def test_limits_of_nan_to_num_are_numbers_or_tensors_of_one():
    x = resilin.tensor([float("nan"), float("inf"), -float("inf"), 1.0])
    assert x.nan_to_num(resilin.tensor(2.0), resilin.tensor(3.0), resilin.tensor(4.0)).tolist() == [2, 3, 4, 1]
    assert x.nan_to_num(None, 3.0, 4).tolist() == [0, 3, 4, 1]


@pytest.mark.parametrize(
    "call",
    [
        lambda: resilin.addcmul(X, X, X, value=None),
        lambda: X.triu(None),
        lambda: X.tril("a"),
        lambda: X.chunk(None),
        lambda: X.diagonal(None),
        lambda: X.roll(None),
        lambda: X.multinomial(None),
        lambda: X.histc(None),
        lambda: functional.one_hot(ONE, None),
        lambda: functional.pixel_shuffle(X[None], None),
    ],
)
def test_an_argument_of_a_wrong_type_is_told_in_plain_words(call):
    with pytest.raises(TypeError, match=r"^\w+\(.*(None|'a').*an argument is of a wrong type") as caught:
        call()
    assert "incompatible function arguments" not in str(caught.value)

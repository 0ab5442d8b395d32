"""The public names of `resilin` that come from core. `resilin/__init__.py` resolves them here on first use."""

from __future__ import annotations

from resilin.core import held_memory as _held_memory  # tells a full device whose memory it is
from resilin.core.api.conversion import copies as _copies
from resilin.core.api.conversion import dlpack as _exchange
from resilin.core.api.conversion import layouts as _layouts
from resilin.core.api.conversion.layouts import UntypedStorage
from resilin.core.api.conversion.printing import set_printoptions
from resilin.core.api.conversion.tensor_types import (
    BFloat16Tensor,
    BoolTensor,
    ByteTensor,
    CharTensor,
    DoubleTensor,
    FloatTensor,
    HalfTensor,
    IntTensor,
    LongTensor,
    ShortTensor,
)
from resilin.core.api.manipulation import rearranging as _rearranging
from resilin.core.api.manipulation import scattering as _scattering
from resilin.core.api.manipulation import sorting as _sorting
from resilin.core.api.manipulation import uniques as _uniques
from resilin.core.api.manipulation.indexing import (
    argwhere,
    bincount,
    gather,
    index_add,
    index_copy,
    index_fill,
    index_put,
    index_select,
    isin,
    masked_fill,
    masked_select,
    nonzero,
    nonzero_static,
    scatter,
    scatter_add,
    take,
    take_along_dim,
    tril_indices,
    triu_indices,
    where,
)
from resilin.core.api.manipulation.joining import (
    cat,
    chunk,
    concat,
    concatenate,
    narrow,
    select,
    split,
    stack,
    tensor_split,
    unbind,
)
from resilin.core.api.manipulation.shaping import (
    broadcast_shapes,
    broadcast_to,
    clone,
    diag,
    diagonal,
    flatten,
    flip,
    moveaxis,
    movedim,
    permute,
    ravel,
    repeat_interleave,
    reshape,
    roll,
    squeeze,
    swapaxes,
    swapdims,
    t,
    tile,
    transpose,
    tril,
    triu,
    unflatten,
    unsqueeze,
)
from resilin.core.api.mathematics import complexes as _complexes
from resilin.core.api.mathematics import elementwise as _elementwise
from resilin.core.api.mathematics import spectral as _spectral
from resilin.core.api.mathematics import statistics as _statistics
from resilin.core.api.mathematics.arithmetic import (
    abs,
    absolute,
    acos,
    acosh,
    add,
    addcdiv,
    addcmul,
    allclose,
    angle,
    arccos,
    arccosh,
    arcsin,
    arcsinh,
    arctan,
    arctan2,
    arctanh,
    asin,
    asinh,
    atan,
    atan2,
    atanh,
    bitwise_and,
    bitwise_left_shift,
    bitwise_not,
    bitwise_or,
    bitwise_right_shift,
    bitwise_xor,
    ceil,
    clamp,
    clamp_max,
    clamp_min,
    clip,
    conj,
    cos,
    cosh,
    div,
    divide,
    eq,
    equal,
    exp,
    exp2,
    expm1,
    floor,
    floor_divide,
    fmod,
    frac,
    ge,
    greater,
    greater_equal,
    gt,
    hypot,
    imag,
    is_complex,
    is_floating_point,
    is_tensor,
    isclose,
    isfinite,
    isinf,
    isnan,
    le,
    lerp,
    less,
    less_equal,
    log,
    log1p,
    log2,
    log10,
    logaddexp,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    logit,
    lt,
    maximum,
    minimum,
    mul,
    multiply,
    nan_to_num,
    ne,
    neg,
    negative,
    not_equal,
    numel,
    pow,
    real,
    reciprocal,
    remainder,
    result_type,
    round,
    rsqrt,
    sign,
    signbit,
    sin,
    sinh,
    sqrt,
    square,
    sub,
    subtract,
    tan,
    tanh,
    trace,
    true_divide,
    trunc,
    xlogy,
)
from resilin.core.api.mathematics.distances import (
    cdist,
    cosine_similarity,
    pairwise_distance,
    pdist,
)
from resilin.core.api.mathematics.einsum import einsum
from resilin.core.api.mathematics.linear_algebra import (
    chain_matmul,
    cholesky,
    cholesky_inverse,
    cholesky_solve,
    cross,
    det,
    ger,
    inner,
    inverse,
    kron,
    logdet,
    matrix_exp,
    matrix_power,
    pinverse,
    qr,
    slogdet,
    svd,
    tensordot,
    vander,
)
from resilin.core.api.mathematics.products import addmm, baddbmm, bmm, dot, matmul, mm, mv, outer, vdot
from resilin.core.api.mathematics.reducing import (
    all,
    amax,
    amin,
    any,
    argmax,
    argmin,
    count_nonzero,
    cumprod,
    cumsum,
    logsumexp,
    max,
    mean,
    min,
    nanmean,
    nansum,
    norm,
    prod,
    std,
    std_mean,
    sum,
    var,
    var_mean,
)
from resilin.core.api.mathematics.special import (
    digamma,
    erfc,
    erfinv,
    i0,
    igamma,
    igammac,
    lgamma,
    mvlgamma,
    polygamma,
    sinc,
)
from resilin.core.api.nn import root_layers as _root_layers
from resilin.core.api.nn.activations import (
    celu,
    celu_,
    hardshrink,
    prelu,
    relu_,
    rrelu,
    rrelu_,
    selu,
    selu_,
    threshold,
    threshold_,
)
from resilin.core.api.nn.ctc import (
    ctc_loss,
)
from resilin.core.api.nn.likelihood_losses import (
    poisson_nll_loss,
)
from resilin.core.api.nn.margin_losses import (
    cosine_embedding_loss,
    hinge_embedding_loss,
    margin_ranking_loss,
    triplet_margin_loss,
)
from resilin.core.api.nn.neural import erf, log_softmax, relu, sigmoid, softmax
from resilin.core.api.nn.recurrent import gru_cell, lstm_cell, rnn_relu_cell, rnn_tanh_cell
from resilin.core.autocast import functions as _autocast
from resilin.core.autograd.grad_mode import (
    enable_grad,
    inference_mode,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_grad_enabled,
)
from resilin.core.determinism import (
    are_deterministic_algorithms_enabled,
    get_deterministic_debug_mode,
    is_deterministic_algorithms_warn_only_enabled,
    set_deterministic_debug_mode,
    use_deterministic_algorithms,
)
from resilin.core.device import device, get_default_device, register_backend, set_default_device
from resilin.core.dtype import (
    bfloat16,
    bool_,
    can_cast,
    complex64,
    complex128,
    dtype,
    finfo,
    float16,
    float32,
    float64,
    get_default_dtype,
    iinfo,
    int8,
    int16,
    int32,
    int64,
    promote_types,
    set_default_dtype,
    uint8,
    uint16,
    uint32,
    uint64,
)
from resilin.core.float32_matmul import get_float32_matmul_precision, set_float32_matmul_precision
from resilin.core.machine.threads import get_num_threads, set_num_threads
from resilin.core.ops.creation import (
    arange,
    as_tensor,
    asarray,
    empty,
    empty_like,
    eye,
    from_numpy,
    full,
    full_like,
    layout,
    linspace,
    logspace,
    ones,
    ones_like,
    strided,
    tensor,
    zeros,
    zeros_like,
)
from resilin.core.ops.random import (
    bernoulli,
    multinomial,
    normal,
    rand,
    rand_like,
    randint,
    randint_like,
    randn,
    randn_like,
    randperm,
)
from resilin.core.ops.random_distributions import binomial, poisson
from resilin.core.public import dispatch as _dispatch
from resilin.core.public import in_place_names as _in_place_names
from resilin.core.public.settings import (
    get_num_interop_threads,
    set_flush_denormal,
    set_num_interop_threads,
)
from resilin.core.rng import (
    Generator,
    default_generator,
    fork_rng,
    get_rng_state,
    initial_seed,
    keyed,
    manual_seed,
    seed,
    set_rng_state,
)
from resilin.core.state.memory_format import (
    channels_last,
    channels_last_3d,
    contiguous_format,
    memory_format,
    preserve_format,
)
from resilin.core.state.size import Size
from resilin.core.tensor import Tensor

bool = bool_
float, double, half, cfloat, cdouble = float32, float64, float16, complex64, complex128
int, long, short = int32, int64, int16
newaxis = None
pi, e, inf, nan = 3.141592653589793, 2.718281828459045, 1e400, 1e400 - 1e400

for _module in (
    _autocast,
    _complexes,
    _copies,
    _elementwise,
    _exchange,
    _layouts,
    _rearranging,
    _root_layers,
    _scattering,
    _sorting,
    _spectral,
    _statistics,
    _uniques,
):  # whole files of functions; the file says which
    globals().update({_name: getattr(_module, _name) for _name in _module.__all__})
globals().update({_name: getattr(Tensor, _name) for _name in _in_place_names.FUNCTIONS})
_dispatch.publish(  # what takes tensors, or makes them: arguments' classes and modes can take its calls over
    "resilin",
    globals(),
    [
        _name
        for _name, _value in list(globals().items())
        if _name not in _dispatch.IGNORED
        and getattr(_value, "__module__", "").startswith(
            ("resilin.core.api.", "resilin.core.ops.", "resilin.core.state.inplace")
        )
    ],
)

globals().update({_name: _dispatch.of_data(globals()[_name], "resilin") for _name in _dispatch.OF_DATA})

__all__ = [name for name in globals() if not name.startswith("_") and name != "annotations"]

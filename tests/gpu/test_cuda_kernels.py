"""The CUDA kernels' own text, run on the host thread by thread, equals the numpy references and the stated order."""

from __future__ import annotations

import itertools
from pathlib import Path

import extent
import numpy as np
import pytest

from resilin.core import dtype as dtypes
from resilin.core.kernels import check, layer_norm
from resilin.core.kernels.cuda import layer_norm as cuda_layer_norm
from resilin.core.kernels.cuda import row_sums, sources

SIZES = [(1, 1), (2, 31), (3, 33), (1, 4097), (5, 256)]
TOLERANCES = {"float64": 1e-12, "float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}
DTYPES = [np.dtype(np.float64), np.dtype(np.float32), np.dtype(np.float16), dtypes.bfloat16.np]


def draws(seed, *shapes, dtype):
    random = np.random.default_rng(seed)
    return [random.standard_normal(shape).astype(dtype) for shape in shapes]


def equal(found, expected, dtype, scale=1.0):
    found, expected = (x.get() if hasattr(x, "get") else x for x in (found, expected))
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    tolerance = TOLERANCES[dtype.name] * scale
    wide = np.float64
    np.testing.assert_allclose(found.astype(wide), expected.astype(wide), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("N", "D"), SIZES)
def test_layer_norm_equals_its_reference_forward_and_backward(cuda, N, D, dtype):
    xp = cuda.xp
    x, g, weight, bias = draws(N + D, (N, D), (N, D), (D,), (D,), dtype=dtype)
    for w, b in ((weight, bias), (weight, None), (None, bias), (None, None)):
        on_device = [None if v is None else xp.asarray(v) for v in (w, b)]
        y, mean, rstd = cuda_layer_norm.forward(xp, xp.asarray(x), *on_device, 1e-5, D)
        for found, expected in zip((y, mean, rstd), layer_norm.reference_forward(x, w, b, 1e-5, D), strict=True):
            equal(found, expected, dtype, scale=10.0 if D == 1 else 1.0)
        expected = layer_norm.reference_backward(g, x, w, mean.get(), rstd.get())
        grads = cuda_layer_norm.backward(xp, xp.asarray(g), xp.asarray(x), on_device[0], mean, rstd)
        for found, wanted in zip(grads, expected, strict=True):
            if wanted is None:
                assert found is None
            else:
                equal(found, wanted, dtype, scale=max(1.0, N**0.5) * (300.0 if D == 1 else 1.0))


@pytest.mark.parametrize(
    ("N", "dtype"),
    extent.short(itertools.product([511, 513, 1030], DTYPES), of=lambda N, dtype: N == 513 or dtype.itemsize == 4),
)
def test_layer_norm_sums_many_rows_in_blocks(cuda, N, dtype):
    xp = cuda.xp
    D, acc = 3, np.dtype(np.float32) if dtype.itemsize == 2 else dtype
    g, x = draws(N, (N, D), (N, D), dtype=dtype)
    mean, rstd = draws(N, (N,), (N,), dtype=acc)
    given = [xp.asarray(array) for array in (g, x, mean, rstd)]
    for _ in range(2):  # blocks count themselves from zero again
        _dx, dw, db = cuda_layer_norm.backward(xp, *given[:2], xp.ones(D, acc), *given[2:])
    wide = g.astype(np.float64)
    hat = (x.astype(np.float64) - mean[:, None]) * rstd[:, None]
    np.testing.assert_allclose(dw.get(), (wide * hat).sum(0), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(db.get(), wide.sum(0), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("N", "D"), [(0, 4), (0, 0)])
def test_layer_norm_of_no_rows_launches_nothing(cuda, N, D):
    xp = cuda.xp
    x = xp.zeros((N, D), np.float32)
    y, mean, rstd = cuda_layer_norm.forward(xp, x, None, None, 1e-5, D)
    dx, dw, db = cuda_layer_norm.backward(xp, x, x, xp.ones(D, np.float32), mean, rstd)
    assert (y.shape, mean.shape, dx.shape, dw.shape, db.shape) == ((N, D), (0,), (N, D), (D,), (D,))
    assert not db.get().any()


def test_layer_norm_sums_in_the_order_that_its_source_states(cuda):
    """The same bits as a model of the order in numpy: a thread's elements ascending, lanes and warps in pairs."""
    xp = cuda.xp
    (x,) = draws(5, (1, 1000), dtype=np.float32)
    _, mean, _ = cuda_layer_norm.forward(xp, xp.asarray(x), None, None, 1e-5, 1000)
    threads = np.zeros(256, np.float32)
    for begin in range(0, 1000, 256):
        part = x[0, begin : begin + 256]
        threads[: len(part)] += part
    lanes = threads.reshape(8, 32)
    for distance in (16, 8, 4, 2, 1):
        lanes = lanes + lanes[:, np.arange(32) ^ distance]
    warps = np.zeros(32, np.float32)
    warps[:8] = lanes[:, 0]
    for distance in (16, 8, 4, 2, 1):
        warps = warps + warps[np.arange(32) ^ distance]
    assert mean.get()[0] == warps[0] / np.float32(1000)


def test_layer_norm_refuses_a_weight_of_another_size(cuda):
    xp = cuda.xp
    with pytest.raises(RuntimeError, match="layer_norm: weight has 3 elements, expected 4"):
        cuda_layer_norm.forward(xp, xp.zeros((2, 4), np.float32), xp.zeros(3, np.float32), None, 1e-5, 4)


@pytest.mark.parametrize(
    "dtype", [*DTYPES, *map(np.dtype, (np.int64, np.int32, np.int8, np.bool_, np.complex64, np.complex128))], ids=str
)
@pytest.mark.parametrize(("N", "D", "rows"), [(1, 1, 1), (33, 3, 5), (31, 1, 40), (600, 2, 3), (0, 4, 2)])
def test_rows_are_added_in_order(cuda, N, D, rows, dtype):
    random = np.random.default_rng(N)
    g = (random.standard_normal((N, D)) * 3).astype(dtype)
    target = random.integers(0, rows, N)
    found = row_sums.add_rows(cuda.xp, (rows, D), cuda.xp.asarray(target), cuda.xp.asarray(g)).get()
    wide = np.float32 if dtype.itemsize == 2 and dtype.kind in "fV" else np.int64 if dtype.kind in "bi" else dtype
    expected = np.zeros((rows, D), wide)
    np.add.at(expected, target, g.astype(wide))  # one after the other
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, expected.astype(dtype))


@pytest.fixture(scope="module")
def nvrtc():
    try:
        return check.Nvrtc()
    except check.CompilerMissing as error:
        pytest.skip(str(error))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "architecture"), extent.pairwise(tuple(sources.KERNELS), ("sm_90", "sm_80")))
def test_every_kernel_compiles_without_a_gpu(nvrtc, name, architecture):
    done = check.check(nvrtc, name, architecture)
    assert [one.kernel for one in done] == list(sources.KERNELS[name])
    for one in done:
        assert one.registers >= 8
        assert one.is_within_bounds(), one
        assert one.code_bytes > 0


def test_what_names_nothing_of_an_architecture_alone_has_the_code_of_the_one_without(nvrtc):
    """Why `check` compiles sm_90a only of sources that use it: all sections of code and of constants are equal."""
    one = check.generated()["elementwise: tanh"]
    for name, instances in (("row_sums", None), ("tanh", one)):
        assert not check.is_of_one_architecture(name, instances)
        plain, special = (
            check.Cubin(check._compiled(nvrtc, name, architecture, instances)[0]).contents(".text.", ".nv.constant0.")
            for architecture in ("sm_90", "sm_90a")
        )
        assert len(plain) == 2 * len(instances or sources.KERNELS[name])
        assert plain == special


def test_sources_that_use_what_one_architecture_has_are_compiled_for_it_too(nvrtc, monkeypatch, capsys):
    monkeypatch.setattr(sources, "KERNELS", {"index_range": sources.KERNELS["index_range"]})
    monkeypatch.setattr(check, "generated", dict)
    assert check.main([]) == 0
    assert {line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]} == {"sm_80", "sm_90"}
    assert check.main(["sm_90a"]) == 0
    assert {line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]} == {"sm_90a"}
    used = f"#ifdef __CUDA_ARCH_FEAT_SM90_ALL\n#endif\n{sources.text('index_range')}"
    monkeypatch.setattr(sources, "text", lambda name: used)
    assert check.main([]) == 0
    assert {line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]} == {"sm_80", "sm_90", "sm_90a"}


def test_a_kernel_that_does_not_compile_shows_the_compilers_words_and_the_line(nvrtc, monkeypatch, capsys):
    broken = sources.text("row_sums").replace("A sum = 0;", "A sum = nothing;")
    monkeypatch.setattr(sources, "text", lambda name: broken)
    monkeypatch.setattr(sources, "KERNELS", {"row_sums": sources.KERNELS["row_sums"]})
    monkeypatch.setattr(check, "generated", dict)
    assert check.main(["sm_80"]) == 1
    said = capsys.readouterr().err
    own = Path(sources.__file__).with_name("row_sums.cu").read_text().splitlines()
    line = next(number for number, text in enumerate(own, 1) if "A sum = 0;" in text)
    assert f"row_sums.cu({line})" in said
    assert '"nothing" is undefined' in said


def test_registers_that_do_not_suffice_are_counted(nvrtc, monkeypatch):
    body = "".join(f"float v{i} = x[{i}]; " for i in range(64)) + "for (int n = 0; n < 9; ++n) {"
    body += "".join(f"v{i} = v{i} * v{(i * 7 + 3) % 64} + x[n]; " for i in range(64)) + "}"
    code = f"__global__ void many(float* x) {{ {body} {''.join(f'x[{i}] = v{i}; ' for i in range(64))} }}"
    monkeypatch.setattr(sources, "text_of_all", lambda names: code)
    assert check.check(nvrtc, "many", "sm_90", ("many",))[0].spilled_bytes == 0
    monkeypatch.setattr(sources, "options", lambda name: ("--maxrregcount=32",))
    few = check.check(nvrtc, "many", "sm_90", ("many",))[0]
    assert (few.registers, few.spilled_bytes > 0) == (32, True)


def test_the_check_fails_when_a_kernel_needs_more_registers_than_it_may(nvrtc, monkeypatch, capsys):
    monkeypatch.setattr(sources, "KERNELS", {"index_range": sources.KERNELS["index_range"]})
    monkeypatch.setattr(check, "generated", dict)
    monkeypatch.setattr(check, "REGISTERS", 7)
    assert check.main(["sm_90"]) == 1
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert all("index_range<" in line and "more than 7 registers" in line for line in said)


def test_generated_kernels_are_compiled_together_each_once():
    everything = [one for name, made in check.everything().items() for one in made or sources.KERNELS[name]]
    together = [one for name, made in check.batches() for one in made or sources.KERNELS[name]]
    assert together == everything
    assert len(check.batches()) < len(check.everything()) / 4


PARTS = 8  # that the generated kernels are compiled in


@pytest.mark.deep  # at each commit `make check` compiles all of them, and judges them alike
@pytest.mark.parametrize("part", range(PARTS))
def test_every_generated_kernel_compiles_without_a_gpu(nvrtc, part):
    for name, instances in list(check.generated().items())[part::PARTS]:
        for one in check.check(nvrtc, name, "sm_90", instances):
            assert one.registers >= 8, one
            assert one.is_within_bounds(), one


def test_the_check_prints_each_kernel_with_its_registers(nvrtc, monkeypatch, capsys):
    few = dict(list(check.generated().items())[-2:])
    monkeypatch.setattr(check, "generated", lambda: few)
    monkeypatch.setattr(sources, "KERNELS", {name: sources.KERNELS[name] for name in ("unscale", "index_range")})
    assert check.main(["sm_90"]) == 0
    lines = capsys.readouterr().out.splitlines()
    printed = [line.rpartition(" code  ")[2] for line in lines if line.startswith("sm_90") and "registers" in line]
    assert printed == [one for made in (*sources.KERNELS.values(), *few.values()) for one in made]


def test_without_the_compiler_the_check_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr(check.importlib.util, "find_spec", lambda name: None)
    assert check.main([]) == 2
    assert "pip install nvidia-cuda-nvrtc-cu12" in capsys.readouterr().err

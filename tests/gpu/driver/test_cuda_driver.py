"""Launches through the driver: arguments, streams, errors, versions, against a driver whose memory is the host's."""

from __future__ import annotations

import ctypes
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from null_libraries import NullDriver, compiled, function

from benchmarks import cuda_launch
from resilin._base import world
from resilin.core.backends import cuda_driver
from resilin.core.backends.cuda_driver import Driver
from resilin.core.kernels.loader import native
from resilin.errors import AcceleratorError, OutOfMemoryError

pytestmark = pytest.mark.skipif(native is None, reason="the driver is opened by native code, which is not there")

ILLEGAL_ADDRESS, OUT_OF_MEMORY, NOT_SUPPORTED = 700, 2, 801


class Streams:
    """The current stream, as CuPy tells it."""

    def __init__(self) -> None:
        self.current = SimpleNamespace(ptr=0)

    def __call__(self) -> Any:
        return self.current


class DeviceArray:
    """What has an address on the device, as CuPy's arrays have it."""

    def __init__(self, address: int) -> None:
        self.data = SimpleNamespace(ptr=address)


@pytest.fixture
def null():
    driver = NullDriver()
    driver.reset()
    yield driver
    driver.reset()


@pytest.fixture
def streams():
    return Streams()


@pytest.fixture
def driver(null, streams):
    return Driver(null.path, None, streams, bytearray, waits=False)


def kernel(driver, *sizes, name="scale<float>"):
    """A kernel with parameters of these sizes."""
    handle = function(name, *sizes)
    made = driver.kernel(name, ctypes.addressof(handle))
    return made, handle


def test_arguments_arrive_as_their_bytes_on_the_current_stream(null, driver, streams):
    run, _handle = kernel(driver, 8, 8, 4, 4, 8, 1, 8)
    streams.current = SimpleNamespace(ptr=0x5EED)
    given = (
        DeviceArray(0xDEAD00),
        np.int64(-5),
        np.float32(1.5),
        np.int32(7),
        np.float64(2.25),
        np.bool_(True),
        np.uintp(0),
    )
    run((3, 2), (64,), given, 1024)
    run((1,), (32, 8), given)
    first, second = null.launches
    expected = b"".join([np.uint64(0xDEAD00).tobytes(), *[value.tobytes() for value in given[1:]]])
    assert bytes(first.arguments[: first.bytes]) == expected
    assert (first.name, first.stream, first.shared) == (b"scale<float>", 0x5EED, 1024)
    assert (tuple(first.grid), tuple(first.block)) == ((3, 2, 1), (64, 1, 1))
    assert (tuple(second.grid), tuple(second.block), second.shared) == ((1, 1, 1), (32, 8, 1), 0)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((np.int64(1),), r"takes 2 arguments but 1 were given"),
        ((np.int64(1), np.int64(2)), r"argument 1 has 8 bytes, the kernel takes 4"),
        ((np.int64(1), 2), r"argument 1 is a int; kernels take arrays of the device and numpy's scalars"),
        ((np.complex128(1), np.float32(2)), r"argument 0 is a scalar of 16 bytes"),
        ((np.zeros(3), np.float32(2)), r"argument 0 is a numpy.ndarray"),
    ],
)
def test_arguments_that_the_kernel_does_not_take_are_named(null, driver, given, said):
    run, _handle = kernel(driver, 8, 4)
    with pytest.raises(TypeError, match=rf"scale<float>.*{said}"):
        run((1,), (1,), given)
    assert null.launches == []


def test_an_empty_grid_and_a_wrong_extent_are_refused(driver):
    run, _handle = kernel(driver)
    with pytest.raises(AcceleratorError, match=r"scale<float>, launched on stream 0x0: CUDA_ERROR_INVALID_VALUE \(1\)"):
        run((0,), (1,), ())
    with pytest.raises(TypeError, match="tuples of up to three numbers"):
        run(1, (1,), ())
    with pytest.raises(OverflowError):
        run((-1,), (1,), ())


def test_an_illegal_address_names_rank_kernel_and_stream_and_what_to_do(null, driver, streams, monkeypatch):
    monkeypatch.setattr(world, "_source", lambda: (3, 8))
    run, _handle = kernel(driver)
    streams.current = SimpleNamespace(ptr=0x77)
    null.fail(ILLEGAL_ADDRESS, after=1, ever_after=True)
    run((1,), (1,), ())
    said = (
        r"rank 3 of 8: scale<float>, launched on stream 0x77: CUDA_ERROR_ILLEGAL_ADDRESS \(700\), an illegal memory "
        r"access was encountered.*CUDA_LAUNCH_BLOCKING=1.*restart it"
    )
    for _ in range(2):  # as with CUDA, nothing works any more
        with pytest.raises(AcceleratorError, match=said) as error:
            run((1,), (1,), ())
        assert error.value.error_code == ILLEGAL_ADDRESS


def test_a_full_device_is_out_of_memory_and_what_is_not_supported_says_so(null, driver):
    run, _handle = kernel(driver)
    null.fail(OUT_OF_MEMORY)
    with pytest.raises(OutOfMemoryError, match=r"scale<float>.*CUDA_ERROR_OUT_OF_MEMORY \(2\).*smaller batches"):
        run((1,), (1,), ())
    null.fail(NOT_SUPPORTED)
    with pytest.raises(AcceleratorError, match=r"CUDA_ERROR_NOT_SUPPORTED \(801\)"):
        run((1,), (1,), ())
    null.fail(3)
    with pytest.raises(AcceleratorError, match=r"scale<float>.*\(3\).*forked from one that used CUDA.*'spawn'"):
        run((1,), (1,), ())
    null.fail(12345)
    with pytest.raises(AcceleratorError, match=r"an unknown error \(12345\), the driver does not know it"):
        run((1,), (1,), ())
    run((1,), (1,), ())
    assert len(null.launches) == 1


@pytest.mark.parametrize("waits", [False, True])
def test_with_blocking_launches_each_waits_and_its_own_error_is_raised(null, streams, monkeypatch, waits):
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1" if waits else "0")
    run, _handle = kernel(Driver(null.path, None, streams, bytearray))
    run((1,), (1,), ())
    assert null.synchronized == int(waits)
    null.fail(ILLEGAL_ADDRESS, after=1)  # the launch succeeds, the kernel does not
    if waits:
        with pytest.raises(AcceleratorError, match="ILLEGAL_ADDRESS"):
            run((1,), (1,), ())
    else:
        run((1,), (1,), ())


def test_a_thread_without_a_context_gets_the_kernels(null, driver):
    run, _handle = kernel(driver)
    library = ctypes.CDLL(null.path)
    failed: list[BaseException] = []

    def work() -> None:
        library.cuCtxSetCurrent(None)
        try:
            run((1,), (1,), ())
        except AcceleratorError as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert failed == []
    assert len(null.launches) == 1


def test_launches_of_many_threads_all_arrive(null, driver):
    run, _handle = kernel(driver, 8)
    threads = [threading.Thread(target=lambda: [run((1,), (1,), (np.int64(1),)) for _ in range(200)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ctypes.CDLL(null.path).null_launched() == 800


def test_two_threads_that_want_a_workspace_on_one_stream_get_the_same(null, streams):
    made: list[DeviceArray] = []

    def empty(size: int) -> DeviceArray:
        own = DeviceArray(0x1000 * (len(made) + 1))
        made.append(own)
        if len(made) == 1:  # another thread comes first
            assert driver._workspace(0x77) == 0x2000
        return own

    driver = Driver(null.path, None, streams, empty)
    assert driver._workspace(0x77) == 0x2000
    assert driver.workspaces[0x77] is made[1]


def test_a_driver_that_is_absent_too_old_or_without_a_symbol_is_named(streams):
    with pytest.raises(RuntimeError, match=r"libnone\.so\.1 cannot be opened: .*No such file"):
        Driver("libnone.so.1", None, streams, bytearray)
    with pytest.raises(RuntimeError, match=r"libnull\.so is of version 11\.8; 12\.0 or newer is needed: .*driver 525"):
        Driver(compiled("-DNULL_VERSION=11080"), None, streams, bytearray)
    with pytest.raises(RuntimeError, match=r"libnull\.so has no symbol cuStreamSynchronize"):
        Driver(compiled("-DWITHOUT_SYNCHRONIZE"), None, streams, bytearray)
    with pytest.raises(RuntimeError, match=r"libnull\.so is of version 11\.8; 12\.0 or newer is needed: .*resilin\["):
        Driver(compiled(), compiled("-DNULL_BLASLT_VERSION=110803"), streams, bytearray)


def test_without_cublaslt_products_go_through_cupy_and_a_warning_says_why(null, monkeypatch):
    monkeypatch.setattr(cuda_driver, "DRIVER", null.path)
    monkeypatch.setattr(cuda_driver, "_blaslt_path", lambda cupy: "libcublasLt.so.none")
    cupy = SimpleNamespace(cuda=SimpleNamespace(get_current_stream=Streams()))
    with pytest.warns(RuntimeWarning, match=r"through CuPy, which is slower: libcublasLt\.so\.none cannot be"):
        loaded = cuda_driver.load(cupy)
    assert loaded is not None
    assert loaded.products is None
    assert loaded.version == 12040


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ("/x/libcublasLt.so.12", "/x/libcublasLt.so.12"),
        ("/x/libcublasLt.so.12.8.4", "/x/libcublasLt.so.12.8.4"),
        ("/x/libcublasLt.so.13", "libcublasLt.so.12"),  # of another version than CuPy's
        (None, "libcublasLt.so.12"),
    ],
)
def test_cublaslt_is_the_one_that_goes_with_cupy(monkeypatch, found, expected):
    def finder(name: str) -> Any:
        if found is None:
            raise ImportError(name)
        return SimpleNamespace(load_nvidia_dynamic_lib=lambda library: SimpleNamespace(abs_path=found))

    monkeypatch.setattr(cuda_driver.importlib, "import_module", finder)
    cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=SimpleNamespace(runtimeGetVersion=lambda: 12090)))
    assert cuda_driver._blaslt_path(cupy) == expected


def test_a_launch_costs_the_host_little_beside_one_whose_arguments_are_prepared():
    """Least of many samples, as others compute here, too: our launch reads its arguments anew each time."""
    for _ in range(5):
        found = {name: min(samples) for name, samples in cuda_launch.launches(samples=10).items()}
        ours, prepared = found["launch, 3 arrays and 3 numbers"], found["the same 6 arguments by ctypes"]
        if ours < 3 * prepared and found["product, its plan known"] < 6 * prepared:
            return
    raise AssertionError(f"host time of calls in s: {found}")

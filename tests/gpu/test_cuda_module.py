"""resilin.cuda: torch.cuda's names, on the stand-in with two devices; and what is said without any device."""

import io
import subprocess
import sys
from types import ModuleType

import numpy as np
import pytest

import resilin
from resilin import cuda as module
from resilin.core import device as devices


@pytest.fixture
def two(cuda):
    """Two devices, between which a real process could not change once it has tensors."""
    if isinstance(cuda.cupy, ModuleType):
        pytest.skip("changes devices as only pretended ones can be changed")


@pytest.fixture(autouse=True)
def fresh(cuda):
    """Each test begins as a process without tensors on a device."""
    cuda.computing_on = None
    cuda.choose(0)
    yield
    cuda.computing_on = None
    cuda.choose(0)


def test_a_tensor_goes_to_the_device_and_back(cuda):
    x = resilin.arange(6.0).reshape(2, 3)
    for there in (x.to("cuda"), x.cuda(), x.cuda(0), x.to("cuda:0"), x.to(resilin.device("cuda", 0)), x.to(0)):
        assert there.is_cuda
        assert str(there.device) == "cuda:0"
        assert there.device == resilin.device("cuda:0") == resilin.device("cuda") == resilin.device(0)
        np.testing.assert_array_equal(there.cpu().numpy(), x.numpy())
    there = x.cuda()
    assert there.cuda() is there
    assert there.to("cuda") is there
    with pytest.raises(TypeError, match=r"call \.cpu\(\) first"):
        there.numpy()


def test_the_version_is_that_of_cuda(cuda):
    number = cuda.cupy.cuda.runtime.runtimeGetVersion()
    assert resilin.version.cuda == f"{number // 1000}.{number % 1000 // 10}"
    assert (number // 1000, resilin.version.cuda.count(".")) in {(12, 1), (13, 1)}


def test_gradients_cross_devices(cuda):
    x = resilin.ones(3, requires_grad=True)
    (x.cuda() * 2).sum().backward()
    assert x.grad.tolist() == [2.0, 2.0, 2.0]
    assert not x.grad.is_cuda


@pytest.mark.parametrize(
    "operation",
    [
        lambda a, b: a + b,
        lambda a, b: a @ b,
        lambda a, b: resilin.cat([a, b]),
        lambda a, b: resilin.where(a > 0, a, b),
        lambda a, b: resilin.nn.functional.linear(a, b),
        lambda a, b: a // b,
        lambda a, b: resilin.searchsorted(a[0], b),
        lambda a, b: a.__setitem__(0, b[0]),
        lambda a, b: resilin.nn.functional.mse_loss(a, b),
        lambda a, b: resilin.nn.functional.cross_entropy(a, b.long()[0]),
        lambda a, b: resilin.nn.functional.embedding(b.long(), a),
        lambda a, b: (a.requires_grad_() * 2).backward(b),
    ],
    ids=[
        "+",
        "@",
        "cat",
        "where",
        "linear",
        "//",
        "searchsorted",
        "setitem",
        "mse_loss",
        "cross_entropy",
        "embedding",
        "backward",
    ],
)
def test_mixed_devices_are_refused_and_both_named(cuda, operation):
    a, b = resilin.ones(2, 2), resilin.ones(2, 2)
    with pytest.raises(RuntimeError, match=r"same device, found (cpu and cuda:0|cuda:0 and cpu)"):
        operation(a.cuda(), b)


def test_a_single_number_on_the_cpu_follows_the_other_operand(cuda):
    x, number = resilin.ones(2, device="cuda"), resilin.tensor(3.0, requires_grad=True)
    for y in (x * number, number * x, x + number):
        assert y.is_cuda
    (x * number).sum().backward()
    assert number.grad.item() == 2
    assert not number.grad.is_cuda
    x[0] = resilin.tensor(5.0)
    assert x.tolist() == [5.0, 1.0]


def test_indices_of_the_cpu_serve_a_tensor_on_the_device_but_not_the_other_way(cuda):
    x, rows = resilin.arange(3.0), resilin.tensor([2, 0])
    assert x.cuda()[rows].tolist() == [2.0, 0.0]
    with pytest.raises(RuntimeError, match="found cpu and cuda:0"):
        x[rows.cuda()]


def test_the_last_of_several_values_for_one_place_stays_as_on_the_cpu(cuda):
    twice, values = resilin.tensor([1, 1, 0]), resilin.tensor([1.0, 2.0, 3.0])
    for where in ("cpu", "cuda"):
        x, index, new = resilin.zeros(2, 3, device=where), twice.to(where), values.to(where)
        x[:, 1][index] = new
        x.T[2][index] = new
        x[index] = x[index] + 1
        assert x.tolist() == [[1.0, 4.0, 4.0], [1.0, 3.0, 3.0]]
        with_grad = resilin.zeros(2, device=where, requires_grad=True) * 1
        with_grad[index] = new
        assert with_grad.tolist() == [3.0, 2.0]
        assert resilin.zeros(2, device=where).scatter(0, index, new).tolist() == [3.0, 2.0]


def test_only_a_cuda_device_is_taken_by_cuda(cuda):
    with pytest.raises(RuntimeError, match="Invalid device, must be cuda device: got cpu"):
        resilin.ones(2).cuda("cpu")
    assert resilin.ones(2).cuda(device=0, non_blocking=True).is_cuda


def test_derivatives_of_functions_stay_on_the_device(cuda):
    x = resilin.tensor([1.0, 2.0], device="cuda")
    jacobian = resilin.autograd.functional.jacobian(lambda a: a**2, x)
    hessian = resilin.autograd.functional.hessian(lambda a: (a**3).sum(), x)
    assert jacobian.is_cuda
    assert hessian.is_cuda
    assert jacobian.tolist() == [[2.0, 0.0], [0.0, 4.0]]
    assert hessian.tolist() == [[6.0, 0.0], [0.0, 12.0]]
    with pytest.raises(NotImplementedError, match="gradcheck: inputs must be on the CPU"):
        resilin.autograd.gradcheck(lambda a: a**2, x.double().requires_grad_())


@pytest.mark.parametrize("name", ["xavier_uniform_", "kaiming_normal_", "orthogonal_", "trunc_normal_", "eye_"])
def test_a_parameter_is_initialised_where_it_is(cuda, name):
    fill = getattr(resilin.nn.init, name)
    resilin.manual_seed(0)
    expected = fill(resilin.empty(3, 4))
    resilin.manual_seed(0)
    found = fill(resilin.empty(3, 4, device="cuda"))
    assert found.is_cuda
    np.testing.assert_allclose(found.cpu().numpy(), expected.numpy(), rtol=1e-6)


def test_states_are_saved_and_loaded_across_devices(cuda):
    model = resilin.nn.Sequential(resilin.nn.Linear(2, 2), resilin.nn.BatchNorm1d(2))
    there = resilin.nn.Sequential(resilin.nn.Linear(2, 2), resilin.nn.BatchNorm1d(2)).cuda()
    there.load_state_dict(model.state_dict())
    assert all(value.is_cuda for value in there.state_dict().values())
    file = io.BytesIO()
    resilin.save(there.state_dict(), file)
    for where, expected in (("cpu", False), ("cuda", True), (None, True)):
        file.seek(0)
        loaded = resilin.load(file, map_location=where)
        assert all(value.is_cuda is expected for value in loaded.values())
        assert all(resilin.equal(loaded[k].cpu(), v) for k, v in model.state_dict().items())


def test_a_process_computes_on_one_device(cuda, two):
    resilin.ones(2, device="cuda")
    with pytest.raises(RuntimeError, match="this process computes on cuda:0: one process uses one GPU"):
        resilin.ones(2, device="cuda:1")
    with pytest.raises(RuntimeError, match=r"resilin\.cuda\.set_device before the first tensor"):
        module.set_device(1)
    with pytest.raises(RuntimeError, match=r"cuda:2 does not exist: cuda has 2 device"):
        resilin.ones(2, device="cuda:2")


def test_the_device_that_cuda_means_can_be_chosen_before_the_first_tensor(cuda, two):
    assert module.current_device() == 0
    module.set_device("cuda:1")
    assert module.current_device() == 1
    assert str(resilin.ones(2, device="cuda").device) == "cuda:1"
    with pytest.raises(ValueError, match="expected a cuda device, got cpu"):
        module.set_device("cpu")


def test_a_device_is_the_current_one_inside_a_block(cuda, two):
    with module.device(1):
        assert module.current_device() == 1
    assert module.current_device() == 0
    with module.device(None):
        assert module.current_device() == 0


def test_devices_are_counted_and_described(cuda):
    assert module.is_available()
    assert module.is_initialized()
    assert module.device_count() == cuda.count()
    found = module.get_device_properties(0)
    assert found.name == module.get_device_name("cuda:0") != ""
    assert module.get_device_capability() == (found.major, found.minor)
    assert found.total_memory > 0
    assert found.multi_processor_count > 0
    assert module.is_bf16_supported()


def test_memory_is_counted(cuda):
    x = resilin.ones(8, device="cuda")
    assert 0 < module.memory_allocated() <= module.max_memory_allocated()
    assert module.memory_allocated() <= module.memory_reserved() <= module.max_memory_reserved()
    module.reset_peak_memory_stats()
    assert module.max_memory_allocated() == module.memory_allocated()
    assert module.device_count() == 1 or module.memory_allocated(1) == 0
    free, total = module.mem_get_info()
    assert 0 < free <= total
    assert x.is_cuda
    module.empty_cache()
    module.synchronize()


def test_memory_is_counted_under_pytorchs_names(cuda):
    resilin.ones(8, device="cuda")
    stats = module.memory_stats()
    assert stats["allocated_bytes.all.current"] == module.memory_allocated() <= stats["allocated_bytes.all.peak"]
    assert stats["reserved_bytes.all.current"] == module.memory_reserved() <= stats["reserved_bytes.all.peak"]
    assert all(name in module.memory_summary() for name in stats)


def test_what_is_added_up_starts_anew_and_peaks_and_what_is_taken_stay(cuda):
    kept = resilin.ones(8, device="cuda")
    before = module.memory_stats()
    module.reset_accumulated_memory_stats()
    stats = module.memory_stats()
    assert stats["allocation.all.allocated"] == stats["allocated_bytes.all.freed"] == stats["num_device_alloc"] == 0
    for name in ("allocation.all.current", "allocated_bytes.all.peak", "reserved_bytes.all.current"):
        assert stats[name] == before[name] > 0
    more = resilin.ones(8, device="cuda")
    nested = module.memory_stats_as_nested_dict()
    assert nested["allocation"]["all"]["allocated"] >= 1
    assert nested["allocated_bytes"]["all"]["current"] == module.memory_allocated()
    assert kept.is_cuda
    assert more.is_cuda


def test_older_names_of_figures_say_the_same(cuda):
    kept = resilin.ones(8, device="cuda")
    for reset in (module.reset_max_memory_allocated, module.reset_max_memory_cached):
        resilin.ones(1 << 20, device="cuda")
        reset()
        assert module.max_memory_allocated() == module.memory_allocated()
    assert module.memory_cached() == module.memory_reserved()
    assert module.max_memory_cached() == module.max_memory_reserved()
    assert module.get_allocator_backend() == "native"
    assert module.get_per_process_memory_fraction() == 1
    module.set_per_process_memory_fraction(0.5)
    assert module.get_per_process_memory_fraction() == 0.5
    module.set_per_process_memory_fraction(1.0)
    assert kept.is_cuda


def test_what_a_device_can_do_is_told(cuda):
    major, minor = module.get_device_capability()
    assert module.get_arch_list() == [f"sm_{major}{minor}"]
    assert module.is_tf32_supported() == (major >= 8)
    assert not module.can_device_access_peer(0, 0)


def test_a_stream_of_another_library_is_taken_by_its_address(cuda):
    own = cuda.cupy.cuda.Stream(non_blocking=True)
    stream = module.ExternalStream(own.ptr)
    assert isinstance(stream, module.Stream)
    assert stream._stream.ptr == module.get_stream_from_external(own.ptr, 0)._stream.ptr == own.ptr
    with module.stream(stream):
        y = resilin.ones(2, device="cuda") * 3
    stream.synchronize()
    assert y.tolist() == [3, 3]


def test_a_full_device_is_named_with_what_is_taken(cuda):
    assert module.OutOfMemoryError is resilin.OutOfMemoryError
    with pytest.raises(
        module.OutOfMemoryError, match=r"cuda:0: no memory for 1125899906842624 bytes more; tensors take"
    ):
        cuda.memory.allocate(1 << 50)
    with pytest.raises(ValueError, match="from 0 to 1, got 2"):
        module.set_per_process_memory_fraction(2)
    module.set_per_process_memory_fraction(0.5)
    try:
        with pytest.raises(RuntimeError, match="no memory"):
            cuda.memory.allocate(int(0.6 * module.mem_get_info()[1]))
    finally:
        module.set_per_process_memory_fraction(1)


def test_a_tensors_device_is_the_current_one_inside_a_block(cuda):
    for x in (resilin.ones(2), resilin.ones(2, device="cuda")):
        with module.device_of(x):
            assert module.current_device() == 0


def test_draws_are_those_of_the_cpu_and_one_seed_rules_both(cuda):
    resilin.manual_seed(3)
    on_cpu = resilin.randn(5)
    module.manual_seed_all(3)
    np.testing.assert_array_equal(resilin.randn(5, device="cuda").cpu().numpy(), on_cpu.numpy())
    state = module.get_rng_state()
    first = resilin.rand(3, device="cuda").tolist()
    module.set_rng_state(state)
    assert resilin.rand(3, device="cuda").tolist() == first
    assert module.initial_seed() == 3
    states = module.get_rng_state_all()
    first = resilin.rand(3, device="cuda").tolist()
    module.set_rng_state_all(states)
    assert resilin.rand(3, device="cuda").tolist() == first


def test_streams_and_events_have_pytorchs_methods(cuda):
    stream, start, end = module.Stream(), module.Event(enable_timing=True), module.Event(enable_timing=True)
    start.record()
    with module.stream(stream):
        y = resilin.ones(3, device="cuda") * 2
    end.record(stream)
    module.current_stream().wait_stream(stream)
    end.wait()
    stream.synchronize()
    end.synchronize()
    assert stream.query()
    assert end.query()
    module.set_stream(module.default_stream())
    module.set_stream(None)
    assert module.StreamContext is module.stream
    assert not module.is_current_stream_capturing()
    assert start.elapsed_time(end) >= 0
    assert y.tolist() == [2.0, 2.0, 2.0]
    with pytest.raises(ValueError, match="enable_timing=True"):
        start.elapsed_time(module.Event())
    with pytest.raises(NotImplementedError, match="interprocess"):
        module.Event(interprocess=True)


def test_an_index_that_is_out_of_range_is_refused_although_cupy_would_wrap_it_around(cuda):
    x = resilin.ones(3, 2, device="cuda")
    wrong = resilin.tensor([0, 3], device="cuda")
    assert (x._array[wrong._array] == 1).all()  # CuPy's answer
    for index in (wrong, (..., wrong), (None, wrong), (slice(None), wrong)):
        found = x[index]
        with pytest.raises(IndexError, match=r"index 3 is out of bounds .*test_cuda_module.py:\d+\)"):
            found.cpu()  # where something waits
        x[index] = 2.0
        with pytest.raises(IndexError, match=r"index 3 is out of bounds"):
            resilin.cuda.synchronize()
    with pytest.raises(IndexError, match=r"index 4 is out of bounds"):
        x[resilin.tensor([0, 4])]  # the host sees that
    picked = x.gather(0, resilin.tensor([[5, 0]], device="cuda"))
    with pytest.raises(RuntimeError, match=r"gather\(\): index 5 is out of bounds for a dimension of size 3"):
        picked.tolist()
    with pytest.raises((RuntimeError, IndexError), match=r"index 7 is outside \[0, 3\)"):
        resilin.nn.functional.embedding(resilin.tensor([7], device="cuda"), x).tolist()  # said where something waits


WITHOUT = """
import resilin
from resilin import cuda
assert not cuda.is_available() and cuda.device_count() == 0 and not cuda.is_initialized()
cuda.manual_seed(1); cuda.manual_seed_all(1); cuda.empty_cache(); cuda.seed_all()
assert cuda.memory_allocated() == cuda.max_memory_allocated() == 0 and cuda.get_rng_state_all() == []
for call in (cuda.current_device, cuda.synchronize, cuda.get_device_name, cuda.Stream, cuda.Event, cuda.init):
    try:
        call()
    except RuntimeError as error:
        assert "device type 'cuda' needs" in str(error), error
    else:
        raise AssertionError(call)
"""


@pytest.mark.skipif("cuda" not in devices._BACKENDS and module.is_available(), reason="there is a CUDA device here")
def test_without_a_device_seeds_are_ignored_and_the_rest_says_what_is_missing():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT],
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, done.stderr

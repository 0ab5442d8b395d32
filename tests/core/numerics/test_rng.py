"""Random streams: reproducible, keyed, independent."""

import copy
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest

import resilin


def test_a_seed_repeats_all_kinds_of_draws():
    def draw():
        resilin.manual_seed(7)
        return [resilin.rand(3), resilin.randn(5), resilin.randint(0, 9, (4,)), resilin.randperm(6), resilin.rand(2)]

    assert all(resilin.equal(a, b) for a, b in zip(draw(), draw(), strict=True))


def test_the_state_can_be_saved_and_restored():
    state = resilin.get_rng_state()
    first = resilin.randn(7)
    resilin.set_rng_state(state)
    assert resilin.equal(first, resilin.randn(7))
    assert state.dtype is resilin.uint8
    for wrong in (resilin.ones(3), 7, None):
        with pytest.raises(TypeError, match="must be a uint8 tensor"):
            resilin.set_rng_state(wrong)
    with pytest.raises(RuntimeError, match="expected 24 bytes"):
        resilin.set_rng_state(state[:16])


def test_successive_draws_do_not_overlap():
    resilin.manual_seed(1)
    whole = np.concatenate([resilin.rand(5).numpy(), resilin.rand(5).numpy(), resilin.rand(5).numpy()])
    assert len(set(whole.tolist())) == 15


def test_keyed_draws_depend_on_seed_ids_and_call_number_only():
    resilin.manual_seed(3)
    resilin.rand(100)
    before = resilin.default_generator().offset
    with resilin.keyed(4, 2):
        first, second = resilin.rand(3), resilin.rand(3)
    assert resilin.default_generator().offset == before
    resilin.manual_seed(3)
    with resilin.keyed(4, 2):
        assert resilin.equal(resilin.rand(3), first)
        assert resilin.equal(resilin.rand(3), second)
    assert not resilin.equal(first, second)


def test_keyed_streams_differ_by_ids_order_nesting_and_seed():
    resilin.manual_seed(3)
    seen = []
    for ids in ((), (0,), (1,), (0, 0), (0, 1), (1, 0), (2**63, 1)):
        with resilin.keyed(*ids):
            seen.append(tuple(resilin.rand(2).tolist()))
    with resilin.keyed(0), resilin.keyed(1):
        seen.append(tuple(resilin.rand(2).tolist()))
    resilin.manual_seed(4)
    with resilin.keyed(0):
        seen.append(tuple(resilin.rand(2).tolist()))
    assert len(set(seen)) == len(seen)


def test_keyed_restores_the_stream_after_an_error():
    before = resilin.get_rng_state()
    with pytest.raises(RuntimeError, match="negative"), resilin.keyed(1):
        resilin.rand(resilin.rand(1).numel(), -1)
    assert resilin.equal(resilin.get_rng_state(), before)


def in_thread(function):
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join(10)
    return found[0]


def test_threads_share_the_default_generator_so_their_draws_differ():
    resilin.manual_seed(11)
    expected = [resilin.rand(4) for _ in range(3)]
    resilin.manual_seed(11)
    found = [resilin.rand(4), in_thread(lambda: resilin.rand(4)), resilin.rand(4)]
    assert all(map(resilin.equal, found, expected))
    in_thread(lambda: resilin.manual_seed(11))
    assert resilin.equal(resilin.rand(4), expected[0])


def test_no_two_draws_of_threads_are_the_same_numbers():
    resilin.manual_seed(3)
    found = []
    threads = [
        threading.Thread(target=lambda: found.extend(resilin.rand(4)[0].item() for _ in range(2000))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    resilin.manual_seed(3)
    assert sorted(found) == sorted(resilin.rand(4)[0].item() for _ in range(8000))


def test_a_keyed_context_is_that_of_its_thread_alone():
    resilin.manual_seed(11)
    plain = resilin.rand(4)
    resilin.manual_seed(11)
    with resilin.keyed(1):
        first = resilin.rand(4)
        assert resilin.equal(in_thread(lambda: resilin.rand(4)), plain)
        second = resilin.rand(4)
    with resilin.keyed(1):
        assert resilin.equal(resilin.rand(4), first)
        assert resilin.equal(resilin.rand(4), second)


def test_what_is_no_key_or_seed_or_device_type_is_refused():
    with pytest.raises(TypeError, match="keyed: expected integers, got 'a'"):
        resilin.keyed("a")
    with pytest.raises(ValueError, match="manual_seed: expected an integer, got 'x'"):
        resilin.manual_seed("x")
    unknown = pytest.raises(RuntimeError, match="no backend is registered for device type 'zzz'")
    with unknown, resilin.random.fork_rng(device_type="zzz"):
        pass


def test_a_generator_is_independent_of_the_default_one():
    generator = resilin.Generator().manual_seed(5)
    offset = resilin.default_generator().offset
    first = resilin.randn(4, generator=generator)
    assert resilin.default_generator().offset == offset
    assert resilin.equal(first, resilin.randn(4, generator=resilin.Generator().manual_seed(5)))


def test_distributions_have_their_moments():
    resilin.manual_seed(0)
    n = 40_000
    assert abs(resilin.rand(n).mean().item() - 0.5) < 0.01
    assert abs(resilin.randn(n).std().item() - 1) < 0.02
    assert abs(resilin.bernoulli(resilin.full((n,), 0.3)).mean().item() - 0.3) < 0.01
    counts = np.bincount(resilin.randint(-2, 5, (n,)).numpy() + 2, minlength=7)
    assert counts.min() > n / 7 * 0.9
    picked = resilin.multinomial(resilin.tensor([1.0, 0.0, 3.0]), n, replacement=True)
    assert abs((picked == 2).float().mean().item() - 0.75) < 0.01


def test_multinomial_without_replacement_picks_each_once():
    found = resilin.multinomial(resilin.ones(3, 5), 5)
    assert all(sorted(row) == [0, 1, 2, 3, 4] for row in found.tolist())
    with pytest.raises(RuntimeError, match="without replacement"):
        resilin.multinomial(resilin.tensor([1.0, 0.0]), 2)


def test_dropout_zeroes_and_scales_and_backward_uses_the_same_mask():
    resilin.manual_seed(0)
    x = resilin.ones(1000, requires_grad=True)
    y = resilin.nn.functional.dropout(x, 0.25)
    y.sum().backward()
    kept = y.detach().numpy() > 0
    assert 700 < kept.sum() < 800
    np.testing.assert_allclose(x.grad.numpy(), kept / 0.75, rtol=1e-6)


def test_fork_rng_leaves_the_outer_stream():
    before = resilin.get_rng_state()
    with resilin.core.rng.fork_rng():
        resilin.rand(9)
    assert resilin.equal(before, resilin.get_rng_state())


def test_the_default_generator_can_be_given_by_name():
    resilin.manual_seed(11)
    generator = resilin.default_generator
    expected = resilin.rand(3)
    resilin.manual_seed(11)
    assert resilin.equal(resilin.rand(3, generator=generator), expected)
    state = generator.get_state()
    second = resilin.rand(3)
    assert resilin.equal(resilin.rand(3, generator=generator.set_state(state)), second)
    generator.set_offset(0)
    assert in_thread(generator.initial_seed) == 11
    assert resilin.equal(in_thread(lambda: resilin.rand(3, generator=generator)), expected)
    assert pickle.loads(pickle.dumps(generator)) is copy.deepcopy(generator) is generator


def test_a_clone_draws_what_the_generator_would_and_leaves_it():
    generator = resilin.Generator().manual_seed(5)
    resilin.rand(7, generator=generator)
    clone, copied = generator.clone_state(), pickle.loads(pickle.dumps(generator))
    drawn = [resilin.randn(4, generator=g) for g in (clone, copied, generator)]
    assert resilin.equal(drawn[0], drawn[1])
    assert resilin.equal(drawn[0], drawn[2])
    generator.set_offset(clone.get_offset())
    assert resilin.equal(resilin.rand(2, generator=generator), resilin.rand(2, generator=clone))


@pytest.mark.parametrize(
    ("seed", "initial"), [(0, 0), (-1, 2**64 - 1), (-(2**63), 2**63), (2**64 - 1, 2**64 - 1), (1.5, 1), (True, 1)]
)
def test_seeds_are_those_of_pytorch(seed, initial):
    assert resilin.manual_seed(seed).initial_seed() == resilin.initial_seed() == initial
    assert resilin.Generator().manual_seed(seed).initial_seed() == initial


@pytest.mark.parametrize("seed", [2**64, -(2**63) - 1, "a"])
def test_other_seeds_are_refused(seed):
    before = resilin.get_rng_state()
    with pytest.raises(ValueError, match=r"manual_seed: expected a"):
        resilin.manual_seed(seed)
    assert resilin.equal(before, resilin.get_rng_state())


def _draws(device, generator):
    x = resilin.full((3, 2), 0.5, device=device)
    like = {"dtype": resilin.float32, "device": device, "generator": generator}
    return {
        "rand": lambda: resilin.rand(3, **like),
        "randn": lambda: resilin.randn(3, 2, **like),
        "randint": lambda: resilin.randint(0, 9, (4,), device=device, generator=generator),
        "randperm": lambda: resilin.randperm(5, device=device, generator=generator),
        "rand_like": lambda: resilin.rand_like(x, generator=generator),
        "randn_like": lambda: resilin.randn_like(x, generator=generator),
        "randint_like": lambda: resilin.randint_like(x, 9, generator=generator),
        "normal": lambda: resilin.normal(x, 1.0, generator=generator),
        "bernoulli": lambda: resilin.bernoulli(x, generator=generator),
        "multinomial": lambda: resilin.multinomial(x, 2, generator=generator),
        "poisson": lambda: resilin.poisson(x * 9, generator=generator),
        "binomial": lambda: resilin.binomial(x * 8, x, generator=generator),
        "Tensor.bernoulli": lambda: x.bernoulli(generator=generator),
        "Tensor.multinomial": lambda: x.multinomial(1, generator=generator),
        "uniform_": lambda: x.clone().uniform_(1, 2, generator=generator),
        "normal_": lambda: x.clone().normal_(generator=generator),
        "bernoulli_": lambda: x.clone().bernoulli_(0.3, generator=generator),
        "random_": lambda: x.clone().random_(0, 9, generator=generator),
        "exponential_": lambda: x.clone().exponential_(generator=generator),
        "geometric_": lambda: x.clone().geometric_(0.5, generator=generator),
        "cauchy_": lambda: x.clone().cauchy_(generator=generator),
        "log_normal_": lambda: x.clone().log_normal_(generator=generator),
    }


@pytest.mark.parametrize("name", list(_draws("cpu", None)))
def test_draws_come_from_the_given_generator_and_are_the_same_on_every_device(name):
    before = resilin.get_rng_state()
    generators = [resilin.Generator().manual_seed(5) for _ in range(3)]
    first = _draws("cpu", generators[0])[name]()
    again = _draws("cpu", generators[1])[name]()
    elsewhere = _draws("sim:1", generators[2])[name]()
    assert str(elsewhere.device) == "sim:1"
    assert resilin.equal(first, again)
    assert resilin.equal(first, elsewhere.cpu())
    assert generators[0].offset > 0
    assert resilin.equal(before, resilin.get_rng_state())
    with pytest.raises(TypeError, match=r"expected a resilin\.Generator or None, got int"):
        _draws("cpu", 3)[name]()


def test_a_generator_belongs_to_a_device_that_exists():
    assert resilin.Generator().device == resilin.device("cpu")
    assert str(resilin.Generator("sim:1").device) == "sim:1"
    with pytest.raises(RuntimeError, match="no backend is registered"):
        resilin.Generator("foo")


def test_random_has_the_names_of_torch_random():
    names = "default_generator fork_rng get_rng_state initial_seed manual_seed seed set_rng_state thread_safe_generator"
    assert set(names.split()) == set(resilin.random.__all__)
    assert resilin.random.manual_seed(3).initial_seed() == 3
    assert resilin.random.thread_safe_generator() is None
    resilin.manual_seed(1)
    with resilin.random.fork_rng(devices=[], device_type="cuda"):
        inside = resilin.rand(1)
    assert resilin.equal(inside, resilin.rand(1))
    with resilin.random.fork_rng(enabled=False):
        resilin.rand(1)
    assert resilin.default_generator.get_offset() == 2


@pytest.mark.parametrize(
    ("fill", "error", "message"),
    [
        (lambda x: x.random_(5, 3), RuntimeError, "'from' to be less than 'to', but got from=5 >= to=3"),
        (lambda x: x.random_(-1), RuntimeError, "got from=0 >= to=-1"),
        (lambda x: x.byte().random_(0, 300), RuntimeError, "to - 1 is out of bounds for resilin.uint8"),
        (lambda x: x.char().random_(-200, 3), RuntimeError, "from is out of bounds for resilin.int8"),
        (lambda x: x.random_(1, 2, 3), TypeError, "takes"),
        (lambda x: x.int().normal_(), NotImplementedError, "normal_.*int32"),
        (lambda x: x.int().uniform_(), NotImplementedError, "uniform_.*int32"),
        (lambda x: x.int().log_normal_(), NotImplementedError, "log_normal_.*int32"),
        (lambda x: x.int().cauchy_(), RuntimeError, "Cauchy distribution is a continuous"),
        (lambda x: x.int().exponential_(), RuntimeError, "Exponential distribution is a continuous"),
        (lambda x: x.bool().geometric_(0.5), NotImplementedError, "geometric_.*bool"),
        (lambda x: x.cfloat().bernoulli_(), NotImplementedError, "bernoulli_.*complex64"),
        (lambda x: x.cfloat().random_(), NotImplementedError, "random_.*complex64"),
        (lambda x: resilin.normal(0.0, 1.0), TypeError, "a size is needed"),
        (lambda x: resilin.normal(x.int(), 1.0), NotImplementedError, "normal.*int32"),
        (lambda x: x.log_normal_(0, float("nan")), RuntimeError, "std > 0.0"),
    ],
)
def test_what_cannot_be_drawn_is_refused(fill, error, message):
    with pytest.raises(error, match=message):
        fill(resilin.ones(3))


def test_random_integers_reach_all_that_pytorch_says():
    resilin.manual_seed(0)
    assert set(resilin.zeros(200).random_(to=3).tolist()) == {0.0, 1.0, 2.0}
    assert set(resilin.zeros(200).random_(1, to=3).tolist()) == {1.0, 2.0}
    assert set(resilin.zeros(20000, dtype=resilin.uint8).random_().tolist()) == set(range(256))
    assert set(resilin.zeros(50, dtype=resilin.bool).random_().tolist()) == {False, True}
    wide = resilin.zeros(100, dtype=resilin.int64).random_(-(2**63), None)
    assert wide.min().item() < 0 < wide.max().item()
    assert resilin.zeros(100, dtype=resilin.int64).random_(2**62, None).min().item() >= 2**62
    largest = resilin.zeros(100, dtype=resilin.uint64).random_(2**63, None)
    assert min(largest.tolist()) >= 2**63
    with pytest.raises(RuntimeError, match="out of bounds for"):
        resilin.randint(-(2**64), 2**64, (1,))
    half = resilin.zeros(5000, dtype=resilin.float16).random_()
    assert half.max().item() <= 2048
    assert resilin.zeros(500, dtype=resilin.float64).random_().max().item() > 2**40


def test_normal_takes_the_mean_alone_and_keeps_its_dtype():
    assert resilin.normal(resilin.zeros(3, dtype=resilin.float64)).dtype is resilin.float64
    assert resilin.normal(0.0, resilin.ones(2, 3)).shape == (2, 3)
    assert resilin.normal(1, 2, size=(2,)).shape == (2,)


@pytest.mark.slow
def test_a_process_without_a_seed_draws_the_same_each_time_until_it_asks_for_another():
    program = "import resilin; print(resilin.rand(2).tolist()); resilin.seed(); print(resilin.rand(2).tolist())"
    runs = [subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True) for _ in (0, 1)]
    (first, seeded), (second, seeded_again) = (run.stdout.splitlines() for run in runs)
    assert first == second
    assert seeded != seeded_again


def test_large_ranges_are_even():
    made = resilin.randint(0, 3 << 61, (20000,), generator=resilin.Generator().manual_seed(0)).numpy()
    assert made.min() >= 0
    counts = np.bincount(made >> 61, minlength=3)
    assert len(counts) == 3
    assert (abs(counts - 20000 / 3) < 400).all()  # six standard deviations; by remainders they would be 2 : 1 : 1
    again = resilin.randint(0, 3 << 61, (20000,), generator=resilin.Generator().manual_seed(0)).numpy()
    np.testing.assert_array_equal(made, again)


def test_ranges_of_a_power_of_two_take_the_bits_as_they_are():
    bits = resilin.Generator().manual_seed(3).bits(8).astype(np.uint64).reshape(-1, 2)
    words = (bits[:, 0] << np.uint64(32)) | bits[:, 1]
    made = resilin.randint(0, 1 << 60, (4,), generator=resilin.Generator().manual_seed(3)).numpy()
    np.testing.assert_array_equal(made, (words % np.uint64(1 << 60)).astype(np.int64))

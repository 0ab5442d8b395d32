"""Random streams: reproducible, keyed, independent."""

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
    with pytest.raises(RuntimeError, match="uint64 tensor of length 3"):
        resilin.set_rng_state(resilin.ones(3))


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
    before = resilin.default_generator().clone_state()
    with pytest.raises(RuntimeError, match="negative"), resilin.keyed(1):
        resilin.rand(resilin.rand(1).numel(), -1)
    assert resilin.default_generator().clone_state() == before


def test_threads_draw_from_their_own_streams():
    resilin.manual_seed(11)
    expected = resilin.rand(3)
    resilin.manual_seed(11)
    found = []
    thread = threading.Thread(target=lambda: found.append(resilin.rand(3)))
    thread.start()
    thread.join(10)
    assert resilin.equal(found[0], expected)
    assert resilin.equal(resilin.rand(3), expected)


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

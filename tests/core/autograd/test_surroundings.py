"""What a thread was told goes to threads that compute for it, or keeps the computation in it."""

import threading

import resilin
from resilin import autograd, overrides
from resilin.autograd import forward_ad
from resilin.core.autograd.anomaly import is_anomaly_check_nan_enabled, is_anomaly_enabled
from resilin.core.autograd.surroundings import bound_to_thread, carried
from resilin.utils.checkpoint import checkpoint


def in_thread(entered, fn):
    found = []

    def run():
        with entered():
            found.append(fn())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(30)
    return found[0]


def told():
    return resilin.is_grad_enabled(), resilin.is_inference_mode_enabled(), str(resilin.ones(1).device)


def test_another_thread_computes_as_this_one_does():
    assert in_thread(carried(), told) == (True, False, "cpu")
    with resilin.no_grad(), resilin.device("sim:3"):
        assert in_thread(carried(), told) == (False, False, "sim:3")
    with resilin.inference_mode():
        assert in_thread(carried(), told) == (False, True, "cpu")
    with autograd.detect_anomaly(check_nan=False):
        assert in_thread(carried(), lambda: (is_anomaly_enabled(), is_anomaly_check_nan_enabled())) == (True, False)


def test_a_thread_is_itself_again_afterwards():
    with resilin.no_grad(), resilin.device("sim:1"):
        entered = carried()
    with entered():
        assert told() == (False, False, "sim:1")
    assert told() == (True, False, "cpu")


def test_what_is_told_of_each_operation_binds_to_its_thread():
    assert not bound_to_thread()
    found = {}

    def note(name):
        def run(x):
            found[name] = bound_to_thread()
            return x * 2

        return run

    x = resilin.ones(2, requires_grad=True)
    checkpoint(note("checkpoint"), x, use_reentrant=False)
    checkpoint(note("reentrant"), x, use_reentrant=True)
    resilin.vmap(note("vmap"))(resilin.ones(2))
    with forward_ad.dual_level():
        note("forward mode")(x)
    with autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        note("hooks")(x)
    with overrides.TensorFunctionMode():
        found["mode"] = bound_to_thread()
    assert found == dict.fromkeys(("checkpoint", "reentrant", "vmap", "forward mode", "hooks", "mode"), True)
    assert not bound_to_thread()

"""compile and its kin give back what they get, and say so once; accelerator, onnx, and switches that are kept."""

import logging

import pytest

import resilin as torch
import resilin._dynamo
import resilin._inductor.config
import resilin.onnx
from resilin import nn


@pytest.fixture
def said(monkeypatch, caplog):
    monkeypatch.setattr("resilin._base.said_once._said", set())
    caplog.set_level(logging.WARNING, "resilin")
    return caplog


def test_compile_gives_back_the_module_and_says_so_once(said):
    net = nn.Linear(2, 2)
    assert torch.compile(net) is net is torch.compile(net, mode="max-autotune")._orig_mod
    assert set(net.state_dict()) == {"weight", "bias"}
    assert len(list(net.modules())) == 1
    assert len([one for one in said.records if "nothing is compiled" in one.getMessage()]) == 1
    nn.Linear(1, 1).compile(fullgraph=True)


def test_compile_is_a_decorator_with_and_without_options():
    @torch.compile
    def f(x):
        return x + 1

    @torch.compile(fullgraph=True, dynamic=False)
    def g(x):
        return x + 2

    @torch.compiler.disable(recursive=False)
    def h(x):
        return x + 3

    @torch._dynamo.optimize("eager")
    def k(x):
        return x + 4

    assert [one(0) for one in (f, g, h, k)] == [1, 2, 3, 4]
    with pytest.raises(RuntimeError, match="Either mode or options"):
        torch.compile(f, mode="default", options={"a": 1})
    with pytest.raises(RuntimeError, match="expected a function or module"):
        torch.compile(3)


def test_nothing_is_ever_compiling():
    compiler = torch.compiler
    assert not any((compiler.is_compiling(), compiler.is_dynamo_compiling(), compiler.is_exporting()))
    assert compiler.list_backends() == []
    with compiler.set_stance("force_eager"):
        compiler.cudagraph_mark_step_begin()
    torch._dynamo.mark_dynamic(torch.ones(1), 0)
    torch._dynamo.reset()
    with pytest.raises(NotImplementedError, match="explain"):
        torch._dynamo.explain(abs)


def test_switches_keep_what_they_are_given():
    config = torch._dynamo.config
    assert config is torch._inductor.config
    with config.patch(suppress_errors=True, something_new=3):
        assert (config.suppress_errors, config.something_new) == (True, 3)
    assert config.suppress_errors is False
    with pytest.raises(AttributeError):
        config.something_new  # noqa: B018

    @config.patch("cache_size_limit", 64)
    def limit():
        return config.cache_size_limit

    assert (limit(), config.cache_size_limit) == (64, 8)


def test_onnx_says_what_there_is():
    assert not torch.onnx.is_in_onnx_export()
    with pytest.raises(NotImplementedError, match=r"Linear.*save_safetensors"):
        torch.onnx.export(nn.Linear(1, 1), torch.ones(1), "model.onnx")


def test_an_accelerator_is_the_cuda_device_or_none():
    accelerator = torch.accelerator
    if accelerator.is_available():
        assert accelerator.current_accelerator().type == "cuda"
        assert accelerator.device_count() > 0
        return
    assert (accelerator.current_accelerator(), accelerator.device_count()) == (None, 0)
    with accelerator.device_index(None):
        pass
    for call in (accelerator.synchronize, accelerator.memory_allocated, accelerator.current_device_index):
        with pytest.raises(RuntimeError, match="Cannot access accelerator device when none is available"):
            call()


def test_switches_of_attention_are_kept():
    cuda = torch.backends.cuda
    with cuda.sdp_kernel(enable_flash=False, enable_math=True, enable_mem_efficient=False):
        assert (cuda.flash_sdp_enabled(), cuda.math_sdp_enabled(), cuda.mem_efficient_sdp_enabled()) == (
            False,
            True,
            False,
        )
    cuda.enable_flash_sdp(False)
    assert not cuda.flash_sdp_enabled()
    cuda.enable_flash_sdp(True)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        pass


def test_safe_globals_are_a_list():
    serialization = torch.serialization
    with serialization.safe_globals([int]):
        assert int in serialization.get_safe_globals()
    assert int not in serialization.get_safe_globals()
    serialization.add_safe_globals([(float, "a.b")])
    assert serialization.get_safe_globals() == [(float, "a.b")]
    serialization.clear_safe_globals()
    assert serialization.get_safe_globals() == []

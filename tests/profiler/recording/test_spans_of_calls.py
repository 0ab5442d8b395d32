"""What remote calls leave in a trace."""

import mmap

import pytest

import resilin as torch
import resilin.distributed.rpc as rpc
from resilin._base import trace, trace_ring
from resilin._base.trace import Kind


def _value(x):
    return torch.exp(x)


def _fails():
    raise ValueError("as it should")


def test_calls_name_function_caller_and_callee(tmp_path):
    rpc.init_rpc(
        "alone", rank=0, world_size=1,
        rpc_backend_options=rpc.TensorPipeRpcBackendOptions(init_method=f"file://{tmp_path}/store"),
    )  # fmt: skip
    buffer = mmap.mmap(-1, 1 << 20)
    try:
        trace.record_with(trace_ring.Ring(buffer))
        try:
            rpc.rpc_sync("alone", _value, args=(torch.ones(2),))
            rpc.rpc_async("alone", _value, args=(torch.ones(2),)).wait()
            rpc.remote("alone", _value, args=(torch.ones(2),)).to_here()
            with pytest.raises(ValueError, match="as it should"):
                rpc.rpc_sync("alone", _fails)
            with pytest.raises(ValueError, match="as it should"):
                rpc.rpc_async("alone", _fails).wait()
        finally:
            trace.record_with(None)
    finally:
        rpc.shutdown()
    spans = [span for span in trace_ring.read(buffer).spans if span.kind == Kind.RPC]
    assert all(span.end_ns is not None for span in spans)
    assert sorted(span.name for span in spans if not span.name.startswith("rpc_call#")) == [
        "rpc_async#_fails(alone -> alone)",
        "rpc_async#_value(alone -> alone)",
        "rpc_remote#_value(alone -> alone)",
        "rpc_sync#_fails(alone -> alone)",
        "rpc_sync#_value(alone -> alone)",
    ]
    assert sorted(span.name for span in spans if span.name.startswith("rpc_call#")) == (
        ["rpc_call#_fails"] * 2 + ["rpc_call#_value"] * 3
    )

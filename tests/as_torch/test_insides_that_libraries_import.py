"""What torchvision and its like import of PyTorch's insides is there, and changes nothing."""

import subprocess
import sys

CODE = """
import torch
import torch.fx, torch._custom_ops, torch.ao.quantization
from torch._prims_common import alert_not_deterministic

@torch.fx.wrap
def function(x):
    return x + 1

torch.fx.wrap("len")
assert function(1) == 2
keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
keys = keys | torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)
assert keys.has("AutocastCPU") and keys.has("AutocastCUDA") and not keys.has("CPU")
with torch._C._ExcludeDispatchKeyGuard(keys), torch._C.DisableTorchFunctionSubclass():
    assert torch.ones(2).sum() == 2
assert torch._C._get_tracing_state() is None
torch._C._log_api_usage_once("this")
alert_not_deterministic("this")
model = torch.nn.Sequential(torch.ao.quantization.QuantStub(), torch.ao.quantization.DeQuantStub())
assert torch.equal(model(torch.ones(2)), torch.ones(2))
print("done")
"""


def test_they_are_there_and_change_nothing():
    done = subprocess.run(
        [sys.executable, "-m", "resilin.as_torch", "-c", CODE], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "done\n", done.stderr

"""A package that loads operators in C++ as torchvision does imports, and names the operator that somebody calls."""

import subprocess
import sys

import pytest

FILES = {
    "__init__.py": """
        from torchvision import extension, ops
        """,
    "extension.py": """
        import ctypes, importlib.machinery, os
        import torch

        def _has_ops():
            return False

        def _register():
            path = os.path.join(os.path.dirname(__file__), "_C.so")
            torch.ops.load_library(path)

        _HAS_OPS = False
        try:
            _register()
            _HAS_OPS = True

            def _has_ops():
                return True
        except (ImportError, OSError) as error:
            reason = str(error)

        def _assert_has_ops():
            if not _has_ops():
                raise RuntimeError("could not load")
        """,
    "ops.py": """
        import torch
        import torch.fx
        import torch.library
        from torch import nn, Tensor
        from torch._dynamo.utils import is_compile_supported
        from torch._prims_common import alert_not_deterministic
        from torch.hub import _get_torch_home, load_state_dict_from_url
        from torch.jit.annotations import BroadcastingList2
        from torch.nn.modules.utils import _pair
        from torch.onnx import symbolic_opset11
        from torch.onnx.symbolic_helper import parse_args
        from torch.utils._pytree import tree_flatten
        from torch.utils.model_zoo import tqdm
        from torchvision.extension import _assert_has_ops, _has_ops

        def nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
            if not torch.jit.is_scripting() and not torch.jit.is_tracing():
                torch._C._log_api_usage_once("nms")
            _assert_has_ops()
            return torch.ops.torchvision.nms(boxes, scores, iou_threshold)

        @torch.fx.wrap
        def roi_align(input: Tensor, size: BroadcastingList2[int]) -> Tensor:
            _assert_has_ops()

        def decode(data: Tensor) -> Tensor:
            return torch.ops.image.decode_jpeg(data, 0)

        @torch.jit.script
        def box_area(boxes: Tensor) -> Tensor:
            return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])

        @torch.jit.unused
        def unused(x: Tensor) -> Tensor:
            return x

        @torch.library.register_fake("torchvision::nms")
        def meta_nms(boxes, scores, iou_threshold):
            return boxes.new_empty(len(boxes), dtype=torch.long)

        @parse_args("v", "v", "f")
        def symbolic_nms(g, boxes, scores, iou_threshold):
            return symbolic_opset11.unsqueeze(g, boxes, 0)

        torch.onnx.register_custom_op_symbolic("torchvision::nms", symbolic_nms, 11)
        """,
}
PROGRAM = """
import torch, torchvision
assert torchvision.ops.is_compile_supported("cpu") and torchvision.ops._get_torch_home()
assert torch.backends.cpu.get_cpu_capability() == "DEFAULT"
assert torch._sample_dirichlet(torch.ones(2, 3)).sum(1).allclose(torch.ones(2))
assert torch._shape_as_tensor(torch.ones(2, 3)).tolist() == [2, 3]
with torchvision.ops.tqdm(total=2, disable=True) as bar:
    bar.update(2)
boxes = torch.tensor([[0.0, 0.0, 2.0, 3.0]])
assert torchvision.ops.box_area(boxes).item() == 6.0
assert "cannot be loaded" in torchvision.extension.reason, torchvision.extension.reason
for call in (lambda: torchvision.ops.nms(boxes, boxes, 0.5), lambda: torchvision.ops.roi_align(boxes, 2),
             lambda: torchvision.ops.decode(boxes)):
    try:
        call()
    except (RuntimeError, AttributeError) as error:
        print(error)
torch.library.define("torchvision::nms", "(Tensor boxes, Tensor scores, float iou_threshold) -> Tensor")
torch.library.impl("torchvision::nms", "cpu", lambda boxes, scores, iou: torch.arange(len(boxes)))
print(torch.ops.torchvision.nms(boxes, boxes[:, 0], 0.5).tolist())
print(torch.ops.torchvision.nms(boxes.to("meta"), boxes[:, 0].to("meta"), 0.5).is_meta)
"""


@pytest.fixture
def package(tmp_path):
    folder = tmp_path / "torchvision"
    folder.mkdir()
    for name, text in FILES.items():
        lines = text.strip("\n").splitlines()
        (folder / name).write_text("\n".join(line[8:] for line in lines) + "\n")
    return tmp_path


def test_it_imports_and_its_operators_raise_by_name(package):
    # the program also gives the operator a kernel of its own: what the package said of it is kept until then
    command = [sys.executable, "-m", "resilin.as_torch", "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=package, check=False)
    assert done.returncode == 0, done.stderr
    nms, roi_align, decode, own, fake = done.stdout.splitlines()
    assert (own, fake) == ("[0]", "True")
    assert nms.startswith("torchvision.ops.nms: torchvision::nms is an operator in C++")
    assert "torchvision.ops.box_iou" in nms
    assert roi_align.startswith("torchvision.ops.roi_align: torchvision::roi_align is an operator in C++")
    assert "grid_sample" in roi_align
    assert "'image' object has no attribute 'decode_jpeg'" in decode
    assert "/torchvision/_C.so, in C++ for PyTorch" in decode

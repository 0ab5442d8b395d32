"""resilin.torch_version. Written by scripts/type_stubs.py."""

from resilin.as_torch.torch_version import TorchVersion as TorchVersion

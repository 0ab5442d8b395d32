"""resilin.cpu.amp.autocast_mode. Written by scripts/type_stubs.py."""

from resilin.amp.older import CpuAutocast as _CpuAutocast
autocast = _CpuAutocast

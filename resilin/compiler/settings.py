"""The switches of PyTorch's compilers, as `resilin._dynamo.config` and `resilin._inductor.config`.

A program may set any switch and reads what it set; those below are PyTorch's values at first. They change nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

accumulated_cache_size_limit = accumulated_recompile_limit = 256
assume_static_by_default = True
automatic_dynamic_shapes = True
cache_size_limit = recompile_limit = 8
capture_dynamic_output_shape_ops = False
capture_scalar_outputs = False
compile_threads = 1
compiled_autograd = False
coordinate_descent_tuning = False
cpp = SimpleNamespace()
disable = False
dynamic_shapes = True
epilogue_fusion = True
error_on_recompile = False
force_parameter_static_shapes = True
freezing = False
fx_graph_cache = True
guard_nn_modules = True
inline_inbuilt_nn_modules = True
log_level = 30
max_autotune = False
optimize_ddp = True
shape_padding = True
skip_nnmodule_hook_guards = True
specialize_int = False
suppress_errors = False
trace = SimpleNamespace()
triton = SimpleNamespace(unique_kernel_names=True, cudagraphs=False)
verbose = False


@contextmanager
def patch(changes: dict[str, Any] | str | None = None, value: Any = None, **more: Any) -> Iterator[None]:
    """Set switches for a block, or as a decorator for a function: `patch(a=1)`, `patch({"a": 1})`, `patch("a", 1)`."""
    wanted = {**({changes: value} if isinstance(changes, str) else changes or {}), **more}
    switches, missing = globals(), object()
    before = {name: switches.get(name, missing) for name in wanted}
    switches.update(wanted)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is missing:
                del switches[name]
            else:
                switches[name] = old

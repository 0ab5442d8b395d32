"""The names of torch.jit. Nothing is compiled: a scripted function or module is the function or module itself.

Marks for the compiler (`ignore`, `unused`, `export`, ...) give back what they mark, `is_scripting` and `is_tracing`
are False. `load`, `save`, `trace` and a scripted module's `save` raise NotImplementedError and say what there is.
"""

import typing

from resilin.jit.marks import (  # noqa: F401 - private names that programs use
    Attribute,
    _overload,
    _overload_method,
    _script_if_tracing,
    annotate,
    export,
    ignore,
    interface,
    is_scripting,
    is_tracing,
    isinstance,
    script_if_tracing,
    script_method,
    unused,
)
from resilin.jit.programs import (
    Error,
    RecursiveScriptModule,
    ScriptFunction,
    ScriptModule,
    TracerWarning,
    enable_onednn_fusion,
    freeze,
    fuser,
    load,
    onednn_fusion_enabled,
    optimize_for_inference,
    optimized_execution,
    save,
    script,
    set_fusion_strategy,
    strict_fusion,
    trace,
    trace_module,
)

Final = typing.Final

__all__ = [
    "Attribute",
    "Error",
    "Final",
    "RecursiveScriptModule",
    "ScriptFunction",
    "ScriptModule",
    "TracerWarning",
    "annotate",
    "enable_onednn_fusion",
    "export",
    "freeze",
    "fuser",
    "ignore",
    "interface",
    "is_scripting",
    "is_tracing",
    "isinstance",
    "load",
    "onednn_fusion_enabled",
    "optimize_for_inference",
    "optimized_execution",
    "save",
    "script",
    "script_if_tracing",
    "script_method",
    "set_fusion_strategy",
    "strict_fusion",
    "trace",
    "trace_module",
    "unused",
]

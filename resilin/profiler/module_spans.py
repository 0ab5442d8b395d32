"""Calls of modules as spans, called as in PyTorch's traces: "nn.Module: Linear_0", the first Linear that was called."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any
from weakref import WeakKeyDictionary

from resilin._base import trace
from resilin.nn.modules.global_hooks import register_module_forward_hook, register_module_forward_pre_hook


class ModuleSpans:
    """From its making to `close`, each call of a module is a span of `recorder`."""

    def __init__(self, recorder: trace.SpanRecorder) -> None:
        self._recorder = recorder
        self._names: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        self._counts: Counter[str] = Counter()
        self._open = threading.local()  # tokens of the calls that this thread is in
        self._handles = [
            register_module_forward_pre_hook(self._begin),
            register_module_forward_hook(self._end, always_call=True),
        ]

    def close(self) -> None:
        """Make no more spans."""
        for handle in self._handles:
            handle.remove()

    def _begin(self, module: Any, args: Any) -> None:
        token = self._recorder.begin(self._name(module), trace.SpanKind.MODULE)
        tokens = getattr(self._open, "tokens", None)
        if tokens is None:
            tokens = self._open.tokens = []
        tokens.append(token)

    def _end(self, module: Any, args: Any, output: Any) -> None:
        tokens = getattr(self._open, "tokens", None)
        if tokens:  # else the call began before the recording
            self._recorder.end(tokens.pop())

    def _name(self, module: Any) -> str:
        found = self._names.get(module)
        if found is None:
            kind = type(module).__name__
            found = self._names[module] = f"nn.Module: {kind}_{self._counts[kind]}"
            self._counts[kind] += 1
        return found

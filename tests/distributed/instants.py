"""Every instant at which Python could run a signal handler while a call is made: after a call returned, at a function's
beginning and at a jump back. Real signals hit each of them once in a million.
"""

import contextlib
import dis
import sys
from pathlib import Path

import resilin

_HANDLED_AFTER = {"CALL", "CALL_FUNCTION_EX", "JUMP_BACKWARD"}
_PACKAGE = str(Path(resilin.__file__).parent)
_BELOW = ("threading.py", "contextlib.py")
_names = {}


class Instants:
    """Inside `counting()`, `act()` is called at the instant number `at`; `count` is how many there were."""

    def __init__(self, at, act):
        self.at = at
        self.count = 0
        self._act = act
        self._last = {}

    @contextlib.contextmanager
    def counting(self):
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(None)
            self._last.clear()

    def _trace(self, frame, event, arg):
        code = frame.f_code
        ours = code.co_filename.startswith(_PACKAGE) or code.co_filename.endswith(_BELOW)
        if self.count >= self.at or not ours:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "return":
            self._last.pop(frame, None)
        elif event == "call" or (event == "opcode" and self._last.get(frame) in _HANDLED_AFTER):
            self.count += 1
        if event == "opcode":
            self._last[frame] = _instructions(code)[frame.f_lasti]
        if self.count == self.at:
            self._last.clear()
            self._act()
            return None
        return self._trace


def _instructions(code):
    if code not in _names:
        _names[code] = {each.offset: each.opname for each in dis.get_instructions(code)}
    return _names[code]

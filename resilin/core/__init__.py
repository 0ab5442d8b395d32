"""The engine: tensors, automatic differentiation, operations, random numbers. Start with README.md."""

from resilin._base import env as _env
from resilin.core.machine import memory as memory
from resilin.core.ops import backend_support as backend_support
from resilin.core.ops import traced as traced
from resilin.core.public import methods as methods

memory.install()  # for this thread: the one that imports resilin; others that make tensors install for themselves
if _env.get("RESILIN_RECORD_DIR"):  # what that needs takes milliseconds of every import
    from resilin.core.machine import standing_recording as _standing_recording

    _standing_recording.start()

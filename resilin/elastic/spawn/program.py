"""Describe what every worker of a node runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from resilin.elastic.spawn.spawner_client import Command

# nothing that lies in the folder of the launch is imported: a script that lies elsewhere would not see it either
_TEMPLATE = (
    "import gc, sys; gc.disable(); sys.flags.safe_path or sys.path.pop(0); "
    "from resilin.elastic.spawn import fork_server; fork_server.main()"
)
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RESILIN_NUM_THREADS"), "1")


@dataclass(frozen=True, kw_only=True)
class Program:
    """Describe what every worker of this node runs."""

    command: tuple[str, ...]
    """The whole command line."""
    argv: tuple[str, ...]
    """The part after the interpreter: what is left to run in a process forked from a template."""
    module: bool = False
    warm: bool = True
    """Whether such a process can run it (not with `--no-python`)."""
    early: bool = False
    """Whether it is sure to import what a template has imported, so that its first workers are forked, too."""
    ours: bool = False
    """Whether nothing in it listens on MASTER_PORT but `dist.TCPStore`, as far as its text tells."""

    def template(self, inherited: Mapping[str, str]) -> Command:
        """The command of the process that its workers are forked from; its arguments only lend it a name."""
        fixed = {**_ONE_THREAD, "TORCHELASTIC_ERROR_FILE": ""}  # the one of a job around this one is none of its own
        return Command(argv=(self.command[0], "-u", "-c", _TEMPLATE, *self.command), env={**inherited, **fixed})

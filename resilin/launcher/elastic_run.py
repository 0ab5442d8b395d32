"""`elastic-run`: starts a training job's workers on this node and keeps the job going.

What everybody waits for is begun first: as soon as the command line says which program is run, the processes that will
start its workers are started; the launcher imports what it needs itself, the larger part, while they import theirs.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence

from resilin._base import env
from resilin.elastic.agent import console
from resilin.elastic.spawn import self_copy, spawner
from resilin.elastic.spawn.spawner_client import SpawnerProcess
from resilin.launcher import arguments, exit_codes, programs


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (None: the process's own) and return the exit code."""

    def body() -> int:
        console.reserve()
        args = arguments.parse(argv)
        program = programs.of(args)
        if args.dry_run:
            from resilin.launcher import dry_run  # loads what opens stores, which a launch imports later

            return dry_run.run(args, program)
        with contextlib.closing(SpawnerProcess(inherit=True)) as process:  # before threads and sockets are there
            if program.early:
                process.prepare(program.template(env.snapshot()))
            from resilin.launcher import run  # most of all imports: processes of the job import theirs meanwhile

            return run.launch(args, program, process)

    try:
        return exit_codes.guarded("elastic-run", body)
    except spawner.Copied as error:
        copied = error.with_traceback(None)
    self_copy.run(copied)  # here, where nothing is left on the stack, and no exception is being handled
    return exit_codes.OK


if __name__ == "__main__":
    sys.exit(main())

"""`elastic-run`: starts a training job's workers on this node and keeps the job going."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from resilin._base import env, log
from resilin.elastic import console
from resilin.elastic.spawning import SpawnerProcess
from resilin.launcher import arguments, exit_codes, plan
from resilin.launcher.plan import LaunchPlan


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (None: the process's own) and return the exit code."""

    def body() -> int:
        console.reserve()
        args = arguments.parse(argv)
        level = arguments.log_level(args.verbose)
        log.configure(level)
        what = plan.make(args)
        if args.dry_run:
            from resilin.launcher import dry_run  # loads what opens stores

            print("\n".join(dry_run.lines(what)))
            return exit_codes.OK
        return launch(what, quiet=args.quiet, level=level)

    return exit_codes.guarded("elastic-run", body)


def launch(what: LaunchPlan, *, quiet: bool = False, level: str = "WARNING") -> int:
    """Carry out a plan; returns the exit code of `elastic-run`. `level`: of the log."""
    with contextlib.ExitStack() as stack:
        base = _folder(what)
        # before threads and sockets are there; removes the temporary folder even when this process is killed
        process = SpawnerProcess(folders=() if what.log_dir else (str(base),), inherit=True)
        if not what.log_dir:
            stack.callback(shutil.rmtree, base, ignore_errors=True)  # should the spawner have been killed
        stack.callback(process.close)
        if what.program.early:
            process.prepare(what.program.template(env.snapshot()))
        from resilin.launcher import running  # half of all imports here: processes of the job import theirs meanwhile

        return running.run(what, base, process, quiet=quiet, level=level)


def _folder(what: LaunchPlan) -> Path:
    """The folder of this run: `<log_dir>/<job>_<random>`, or a temporary one."""
    name = "".join(c if c.isalnum() or c in "-_." else "_" for c in what.job.name[:40])
    if what.log_dir is None:
        return Path(tempfile.mkdtemp(prefix=f"resilin_{name}_"))
    what.log_dir.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=f"{name}_", dir=what.log_dir))


if __name__ == "__main__":
    sys.exit(main())

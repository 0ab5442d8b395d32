"""Workers forked from a template: to their program they are fresh interpreters, and the spawner's own children."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from resilin._base import env
from resilin.elastic.agent.process_supervisor import Supervisor, Worker
from resilin.elastic.spawn.program import Program
from resilin.elastic.spawn.spawner_client import Command, SpawnerProcess
from resilin.testing.patience import PATIENCE_S

TIMEOUT_S = PATIENCE_S

SCRIPT = """
import os, random, sys, threading, __main__
import numpy as np
import helper
told = __name__, sys.argv[1:], os.environ["FLAVOUR"], os.environ["RESILIN_CONTROL_FD"].isdigit(), helper.NAME
sys.stdout.write(" ".join(map(str, told)) + "\\n")  # at once: two workers write to one file
print("to stderr", file=sys.stderr)
assert "resilin.distributed.group.process_group" in sys.modules, "not forked from a template"
assert "TORCHELASTIC_ERROR_FILE" not in os.environ
assert __main__.__dict__ is globals()
assert os.getsid(0) == os.getpid() and threading.active_count() == 1
with open(f"/proc/{os.getppid()}/comm") as file:
    assert file.read().strip() == "resilin-spawner"
with open("/proc/self/cmdline", "rb") as file:
    assert file.read().rstrip(b"\\0").split(b"\\0")[-2:] == [b"--lr", b"0.1"]
print(random.random(), np.random.random(), file=open(f"random-{os.getpid()}", "w"))
sys.exit(7)
"""


def run(work: Callable[[SpawnerProcess, Supervisor], Awaitable[None]]) -> None:
    """Do `work` with a spawner, and end that."""

    async def body() -> None:
        process = SpawnerProcess()
        supervisor = Supervisor(process, lambda: pytest.fail("the spawner was lost"))
        try:
            await asyncio.wait_for(work(process, supervisor), TIMEOUT_S)
        finally:
            await supervisor.close()

    asyncio.run(body())


def program(name: str, *rest: str, module: bool = False) -> Program:
    command = (sys.executable, "-u", *(("-m",) if module else ()), name, *rest)
    return Program(command=command, argv=(name, *rest), module=module)


def template_of(process: SpawnerProcess) -> int:
    """Its only child that lives."""
    children = Path(f"/proc/{process._pid}/task/{process._pid}/children").read_text().split()
    (pid,) = [pid for pid in children if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"]
    return int(pid)


def start(supervisor: Supervisor, what: Program, **streams: int) -> Worker:
    variables = env.snapshot({"FLAVOUR": "vanilla", "OMP_NUM_THREADS": "1"})
    command = Command(argv=what.command, program=what.argv, module=what.module, env=variables, **streams)
    return supervisor.start(command, lambda message: None)


@pytest.mark.parametrize("as_module", [False, True])
def test_a_forked_worker_has_its_arguments_environment_streams_and_random_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_module: bool
) -> None:
    (tmp_path / "prog.py").write_text(SCRIPT)
    (tmp_path / "helper.py").write_text("NAME = 'imported from beside the script'")
    monkeypatch.chdir(tmp_path)
    what = program("prog" if as_module else str(tmp_path / "prog.py"), "--lr", "0.1", module=as_module)

    async def work(process: SpawnerProcess, supervisor: Supervisor) -> None:
        process.prepare(what.template(env.snapshot()))
        with (tmp_path / "out").open("ab") as out, (tmp_path / "err").open("ab") as err:
            workers = [start(supervisor, what, stdout=out.fileno(), stderr=err.fileno()) for _ in range(2)]
        assert [await worker.ended for worker in workers] == [7, 7], (tmp_path / "err").read_text()

    run(work)
    told = "__main__ ['--lr', '0.1'] vanilla True imported from beside the script"
    assert (tmp_path / "out").read_text() == f"{told}\n" * 2
    assert (tmp_path / "err").read_text() == "to stderr\n" * 2
    first, second = (path.read_text().split() for path in tmp_path.glob("random-*"))
    assert first[0] != second[0]
    assert first[1] != second[1]


async def executed_and_forked(
    process: SpawnerProcess, supervisor: Supervisor, what: Program, folder: Path
) -> list[str]:
    """What `what` writes on standard error, and its exit code, as an interpreter and as a forked worker runs it."""
    texts = []
    for name in ("executed", "forked"):
        with (folder / name).open("wb") as err:
            code = await start(supervisor, what, stderr=err.fileno()).ended
        texts.append(f"{(folder / name).read_text()}ended with {code}")
        process.prepare(what.template(env.snapshot()))
    return texts


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("def f():\n    raise ValueError('wrong')\nf()\n", "ValueError: wrong\nended with 1"),
        ("def f():\n    raise KeyboardInterrupt\nf()\n", f"KeyboardInterrupt\nended with {-signal.SIGINT}"),
        ("import os\nos.chdir('/')\nraise SystemExit('enough')\n", "enough\nended with 1"),
        ("import os\nos.chdir('/')\nraise OSError\n", "OSError\nended with 1"),
        ("def f(:\n", "SyntaxError: invalid syntax\nended with 1"),
    ],
)
def test_what_ends_a_forked_worker_is_shown_as_an_interpreter_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, shown: str
) -> None:
    (tmp_path / "prog.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    texts = []

    async def work(process: SpawnerProcess, supervisor: Supervisor) -> None:
        texts.extend(await executed_and_forked(process, supervisor, program("prog.py"), tmp_path))

    run(work)
    executed, forked = texts
    assert forked == executed
    assert forked.endswith(shown)


@pytest.mark.parametrize("path", ["sub/prog.py", "./sub/../sub/prog.py", "link.py"])
def test_a_forked_worker_finds_the_names_of_its_main_module_as_an_interpreter_sets_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "prog.py").write_text(
        "import os, sys\nos.chdir('/')\nopen(__file__).close()\n"
        "print(__file__, sys.argv, sys.path[0], __spec__, sys._getframe().f_code.co_filename, file=sys.stderr)\n"
        "print(sorted(globals()), __builtins__, __loader__.path, __package__, file=sys.stderr)\n"
    )
    (tmp_path / "link.py").symlink_to("sub/prog.py")
    monkeypatch.chdir(tmp_path)
    texts = []

    async def work(process: SpawnerProcess, supervisor: Supervisor) -> None:
        texts.extend(await executed_and_forked(process, supervisor, program(path, "--x"), tmp_path))

    run(work)
    executed, forked = texts
    assert forked == executed
    assert forked.endswith("ended with 0")


def test_a_worker_is_executed_when_the_template_cannot_import(tmp_path: Path) -> None:
    script = tmp_path / "prog.py"
    script.write_text("import sys; sys.exit(3 if 'resilin' not in sys.modules else 4)")
    what = program(str(script))
    broken = Command(argv=(sys.executable, "-c", "raise SystemExit(1)"), env=env.snapshot())

    async def work(process: SpawnerProcess, supervisor: Supervisor) -> None:
        process.prepare(broken)
        assert await start(supervisor, what).ended == 3

    run(work)


def test_a_template_that_was_frozen_is_named_killed_and_replaced_and_workers_do_not_wait_for_it(tmp_path: Path) -> None:
    script, told = tmp_path / "prog.py", []
    script.write_text("import sys; sys.exit(3 if 'resilin.distributed.group.process_group' in sys.modules else 4)")
    what = program(str(script))

    async def work(process: SpawnerProcess, supervisor: Supervisor) -> None:
        supervisor._say = told.append
        process.prepare(what.template(env.snapshot()))
        assert await start(supervisor, what).ended == 3, "forked from it"
        frozen = template_of(process)
        os.kill(frozen, signal.SIGSTOP)
        assert [await worker.ended for worker in [start(supervisor, what) for _ in range(2)]] == [4, 4]
        assert await start(supervisor, what).ended == 3, "forked from the next one"
        assert frozen != template_of(process)
        text = "is stopped (SIGSTOP): it is killed and replaced, and 2 workers start without it"
        assert told == [f"the process that workers are forked from (pid {frozen}) {text}"]

    run(work)


def test_a_template_that_is_frozen_again_and_again_is_given_up(tmp_path: Path) -> None:
    script = tmp_path / "prog.py"
    script.write_text("import sys; sys.exit(3 if 'resilin.distributed.group.process_group' in sys.modules else 4)")
    what, told = program(str(script)), []
    stops = Command(argv=(sys.executable, "-c", "import os; os.kill(os.getpid(), 19)"), env=env.snapshot())

    async def work(process: SpawnerProcess, supervisor: Supervisor) -> None:
        supervisor._say = told.append
        process.prepare(stops)
        assert [await start(supervisor, what).ended for _ in range(5)] == [4] * 5

    run(work)
    assert [" and replaced" in line for line in told] == [True, True, True, False]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_worker_that_is_to_end_before_the_template_is_ready_never_runs(
    tmp_path: Path, number: signal.Signals
) -> None:
    script = tmp_path / "prog.py"
    script.write_text(f"with open({str(tmp_path / 'ran')!r}, 'a') as file: file.write('x')")
    what = program(str(script))

    async def work(process: SpawnerProcess, supervisor: Supervisor) -> None:
        process.prepare(what.template(env.snapshot()))
        doomed = start(supervisor, what)
        doomed.kill(number)
        assert await doomed.ended == -number
        assert await start(supervisor, what).ended == 0

    run(work)
    assert (tmp_path / "ran").read_text() == "x"  # of the second


def test_forked_workers_and_the_template_end_with_the_spawner(tmp_path: Path) -> None:
    script = tmp_path / "prog.py"
    script.write_text("import time; print('runs', flush=True); time.sleep(600)")
    what = program(str(script))
    pids = []

    async def work(process: SpawnerProcess, supervisor: Supervisor) -> None:
        process.prepare(what.template(env.snapshot()))
        reads, writes = os.pipe()
        workers = [start(supervisor, what, stdout=writes) for _ in range(2)]
        os.close(writes)
        with open(reads, "rb") as file:
            await asyncio.get_running_loop().run_in_executor(None, file.read, 10)
        pids.extend(worker.pid for worker in workers)
        assert all(pids)

    run(work)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

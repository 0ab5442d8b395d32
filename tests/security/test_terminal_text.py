"""Texts of the store, of peers and of files reach the terminal as texts: nothing in them is a command to it."""

import ast
import io
import json
import logging
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import resilin.distributed as dist
from resilin import errors
from resilin._base import flight, log
from resilin._base.flight_record import Place
from resilin._base.text import indented, visible, visible_lines
from resilin.distributed.wire import error_codec
from resilin.elastic import records
from resilin.elastic.agent import stragglers
from resilin.elastic.agent.config import Outcome
from resilin.elastic.agent.console import Console
from resilin.elastic.agent.reports import Reporter
from resilin.elastic.agent.stragglers import Slow
from resilin.elastic.agent.streams import Plan
from resilin.elastic.failure import Failure
from resilin.elastic.records import Closed, Generation, GenerationMember, Keys, Live, Node, Slot, Wanted
from resilin.launcher import doctor, exit_codes, main, output, top
from resilin.store.file import FileStore
from resilin.testing.ranks import run_ranks

ROOT = Path(__file__).resolve().parents[2]
# a title, a bell, a return, an escape of one byte, changes of direction, no width, a stranger's half of a pair, a line
HOSTILE = "\x1b]0;title\x07\r\x9b31m\u202etxt.exe\u2066\u200b\ud800\x7f\x00\nelastic-run: all is well"
NAME = HOSTILE.replace("\ud800", "")  # records refuse it
SHOWN = r"\x1b]0;title\x07\r\x9b31m\u202etxt.exe\u2066\u200b\ud800\x7f\x00"


def is_clean(text: str) -> bool:
    return all(letter.isprintable() or letter in "\n\t" for letter in text)


@given(st.text(st.characters(codec=None)))
def test_no_text_has_a_command_left(text):
    assert visible(text).isprintable()
    assert is_clean(visible_lines(text))
    assert all(line.startswith("  ") for line in indented(text).split("\n")[1:])


@given(st.text(st.characters(codec=None)))
def test_what_people_can_see_stays_as_it_is(text):
    seen = "".join(letter for letter in text if letter.isprintable())
    assert visible(seen) == visible_lines(seen) == seen
    assert visible_lines(visible_lines(text)) == visible_lines(text)


def test_every_control_character_and_change_of_direction_is_written_out():
    commands = [*range(0x20), *range(0x7F, 0xA0), 0x61C, *range(0x200B, 0x2010), *range(0x2028, 0x202F)]
    commands += [*range(0x2060, 0x2070), 0xFEFF, *range(0xFFF9, 0xFFFC), 0xD800, 0xDFFF, 0xE0001]
    for code in commands:
        assert visible(f"a{chr(code)}b").isprintable()
        assert re.fullmatch(r"a\\(x..|u....|U........|[tnr])b", visible(f"a{chr(code)}b"))
    assert visible("größe 日本 é 🙂 ‐") == "größe 日本 é 🙂 ‐"


# -- what an agent says


def failed(**changes):
    known = {"rank": 3, "local_rank": 1, "node": HOSTILE, "host": HOSTILE, "pid": 42, "generation": 2, "code": 1}
    return Failure(**{**known, **changes})


@pytest.mark.parametrize("own_stream", [False, True], ids=["console", "plain"])
def test_reports_of_other_nodes_are_lines_of_text(own_stream):
    terminal = Console()
    got = io.BytesIO()
    terminal.stderr.write = got.write
    plain = io.StringIO()
    told = failed(
        type=HOSTILE, message=HOSTILE, traceback=HOSTILE, at=HOSTILE, others=(HOSTILE,), hang_report=HOSTILE,
        log_dir=HOSTILE, unanswered=HOSTILE,
    )  # fmt: skip
    reporter = Reporter(plain if own_stream else terminal.text)
    reporter.lost([1], HOSTILE)
    reporter.left(1, HOSTILE)
    reporter.death(told)
    for number, kind in enumerate(("restart", "inplace"), 1):
        members = (GenerationMember(HOSTILE, 0, number, 0),)
        reporter.generation(
            Generation(
                number=number, kind=kind, members=members, nodes=(HOSTILE,), master_addr="", master_port=0,
                restarts_used=0, reason=HOSTILE,
            )
        )  # fmt: skip
    reporter.outcome(Outcome(code=1, reason=HOSTILE, failure=told, title=HOSTILE), (HOSTILE,))
    reporter.outcome(Outcome(code=1, reason=HOSTILE, failure=failed(log_tail=(HOSTILE,))))
    reporter.close()
    text = plain.getvalue() if own_stream else got.getvalue().decode()
    assert text.count(SHOWN) > 10
    assert is_clean(text)
    assert not [line for line in text.splitlines() if line.startswith("elastic-run: all is well")]
    terminal.close()


def test_what_is_written_to_an_agents_console_is_text_but_a_workers_output_is_its_own():
    terminal = Console()
    got = io.BytesIO()
    terminal.stderr.write = got.write
    print(HOSTILE, file=terminal.text, flush=True)
    assert got.getvalue().decode() == f"{SHOWN}\nelastic-run: all is well\n"
    terminal.stderr.write(b"\x1b[31mred\x1b[0m\n")  # as a worker's pipe is read
    assert got.getvalue().endswith(b"\x1b[31mred\x1b[0m\n")
    terminal.close()


def test_names_in_the_prefix_of_a_line_are_text_and_the_users_own_template_is_his():
    plan = Plan(base=Path(), keep=False, prefix="\x1b[1m${role_name} ${hostname} ")
    assert plan.prefix_for(0, 1, "a\x1b[31m", HOSTILE).startswith("\x1b[1ma\\x1b[31m " + SHOWN)
    assert Plan(base=Path(), keep=False).prefix_for(0, 1, "a\x07", "box") == "[a\\x070]:"


def test_a_record_of_the_log_is_one_line_of_text_and_a_traceback_is_indented():
    stream = io.StringIO()
    log.configure("INFO", stream=stream)
    log.event(log.logger("test"), logging.WARNING, "seen", error=HOSTILE, **{"a\x1b": "b"})
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        log.logger("test").warning("caught %s", HOSTILE, exc_info=True)
    told = stream.getvalue()
    assert is_clean(told)
    first, second, *traceback = told.splitlines()
    assert (SHOWN in first, SHOWN in second, "Traceback" in traceback[0]) == (True, True, True)
    assert all(line.startswith("  ") for line in traceback)


def test_a_log_in_json_has_the_whole_text_and_no_command():
    stream = io.StringIO()
    log.configure("INFO", as_json=True, stream=stream)
    log.event(log.logger("test"), logging.WARNING, "seen", error=HOSTILE)
    assert stream.getvalue().strip().isprintable()
    assert json.loads(stream.getvalue())["error"] == HOSTILE


# -- what commands say


@pytest.fixture
def hostile_job(tmp_path, monkeypatch):
    """Where a store lies in which all texts of a job are hostile, and the words that make commands find it."""
    keys, folder = Keys("job"), tmp_path / "store"
    monkeypatch.setattr(top, "_FIRST_S", 0.0)
    name = NAME.replace("/", "")
    node = Node(
        id=name, host=NAME, address=NAME, master_port=1, slots=(Slot(index=0, incarnation=1, state="ready"),),
        min_nodes=1, max_nodes=2, excluded=NAME,
    )  # fmt: skip
    member = GenerationMember(name, 0, 1, 0)
    now = Generation(
        number=1, kind="restart", members=(member,), nodes=(name,), master_addr=NAME, master_port=1,
        restarts_used=0, reason=NAME,
    )  # fmt: skip
    slow = Slow(rank=0, host=NAME, pid=1, factor=2.0, for_s=1.0, collectives=9)
    with FileStore(str(folder)) as store:
        store.put(f"{keys.nodes}{name}", records.to_bytes(node))
        store.put(keys.leader, name.encode())
        store.put(keys.generation, records.to_bytes(now))
        store.put(keys.wanted, records.to_bytes(Wanted(drained=(NAME,))))
        live = Live(steps=((0, 1, NAME),), at=1.0, failure=NAME)
        store.put(f"{records.live_prefix('job')}{name}", records.to_bytes(live))
        body = json.dumps({"generation": 1, "slow": [vars(slow)]}).encode()
        store.put(f"{stragglers.slow_prefix('job')}found", body)
        yield store, keys, ("job", "--endpoint", f"file://{folder}")


@pytest.mark.parametrize("ended", [False, True])
def test_a_hostile_job_is_shown_as_text_by_every_command(hostile_job, capsys, ended):
    store, keys, (job, *where) = hostile_job
    if ended:
        store.put(keys.closed, records.to_bytes(Closed(outcome="failed", reason=NAME)))
    told = ""
    changes = [(name, what, "--timeout", "0") for name, what in (("scale", "2"), ("drain", NAME), ("drain", "nobody"))]
    for command in (("status",), ("top", "--once"), *changes):
        main.main([command[0], job, *command[1:], *where])
        out, err = capsys.readouterr()
        assert is_clean(out + err), command
        assert "Traceback" not in err, err
        assert not [line for line in (out + err).splitlines() if line.startswith("elastic-run: ")]
        told += out + err
    assert told.count(SHOWN[:24]) >= 5


def test_programs_get_the_texts_of_a_hostile_job_whole(hostile_job, capsys):
    _, _, (job, *where) = hostile_job
    for command in (["status", "--json"], ["top", "--once", "--json"]):
        assert main.main([command[0], job, *command[1:], *where]) == 0
        out = capsys.readouterr().out
        assert is_clean(out)
        assert json.loads(out)["generation"]["reason"] == NAME


def test_flight_records_and_ledgers_with_hostile_names_are_shown_as_text(tmp_path, capsys, monkeypatch):
    word = HOSTILE.encode("utf-8", "surrogatepass")[:30]
    recorder = flight.Recorder(tmp_path / "a\x1b[31m.flight", HOSTILE, 8, HOSTILE)
    recorder.begin(Place(word, 1, 1, 0, 2), word, word, word)
    recorder.close()
    damaged = tmp_path / "b\x1b[31m.flight"
    damaged.write_bytes(b"RSLNFLT" + word)
    main.main(["trace", str(tmp_path), "--calls", "3", "--verbose"])
    ledger = tmp_path / "c\x1b[31m"
    ledger.write_text('{"epoch":0,"step":1,"position":0,"size":1,"generation":1,"rank":0}\n' + HOSTILE[:9] + "\n")
    main.main(["ledger", "verify", str(ledger), "--samples", "1"])
    monkeypatch.setattr(doctor, "findings", lambda endpoint: [doctor.Finding(name=HOSTILE, text=HOSTILE)])
    main.main(["doctor"])
    out, err = capsys.readouterr()
    assert r"b\x1b[31m.flight" in out
    assert r"c\x1b[31m" in out
    assert r"a\x1b[31m.flight" in out
    assert is_clean(out + err)


def test_an_error_that_ends_a_command_is_text_and_its_further_lines_are_indented(capsys):
    def fails(error):
        def body():
            raise error

        return body

    for error in (errors.StoreError(HOSTILE), ValueError(HOSTILE), KeyError(HOSTILE)):
        exit_codes.guarded("elastic-run", fails(error))
    told = capsys.readouterr().err
    assert is_clean(told)
    assert r"\x1b]0;title\x07" in told
    assert "\n  elastic-run: all is well" in told
    assert "\nelastic-run: all is well" not in told


def test_a_terminal_of_few_letters_gets_those(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    output.show("größe \ud800")
    assert raw.getvalue() == b"gr\\xf6\\xdfe \\ud800\n"


def test_commands_and_the_agent_print_in_few_places():
    """So that what is printed elsewhere is found here, before it is found by somebody with a hostile name."""
    places = {
        "resilin/launcher/output.py",
        "resilin/launcher/arguments.py",  # a shell's completion: of this version's own flags
        "resilin/launcher/chaos/__init__.py",  # schedules, as JSON
        "resilin/elastic/agent/reports.py",
        "resilin/elastic/agent/streams.py",
    }
    found = set()
    for folder in ("launcher", "elastic", "store", "checkpoint"):
        for path in (ROOT / "resilin" / folder).rglob("*.py"):
            text = path.read_text()
            calls = ast.walk(ast.parse(text)) if re.search(r"print\(|sys\.std", text) else ()
            called = {ast.unparse(node.func) for node in calls if isinstance(node, ast.Call)}
            if called & {"print", "sys.stdout.write", "sys.stderr.write"}:
                found.add(path.relative_to(ROOT).as_posix())
    assert found == places


# -- what peers say


def test_errors_of_this_library_are_text_and_keep_what_was_said():
    for kind in (errors.PeerLost, errors.UsageError, errors.UsageKeyError, errors.StorageMissing, errors.StoreError):
        error = kind(HOSTILE)
        assert SHOWN in str(error)
        assert is_clean(str(error))
        assert error.args[0] == HOSTILE


@pytest.mark.parametrize("kind", ["ValueError", "KeyError", "OSError", "PeerLost", "CollectiveTimeout", "foo.Bar", "U"])
def test_an_error_of_a_peer_is_text(kind):
    kind = kind if kind != "U" else HOSTILE
    said = {"kind": kind, "text": HOSTILE, "trace": HOSTILE, "ranks": [1]}
    for error in (
        error_codec.decode_reason(json.dumps(said), 1),
        error_codec.rebuilt(said, 1, HOSTILE),
        error_codec.decode_reason(HOSTILE, 1),
    ):
        words = "\n".join([str(error), *getattr(error, "__notes__", ())])
        assert r"x1b]0;title" in words
        assert is_clean(words)


def test_what_a_rank_raises_reaches_its_peers_as_text():
    def raises(rank):
        if rank == 0:
            raise ValueError(HOSTILE)
        dist.barrier()

    outcome = run_ranks(2, raises, transport="unix", timeout_s=20.0)
    assert isinstance(outcome.errors[1], ValueError), outcome.errors
    assert SHOWN in str(outcome.errors[1])
    assert is_clean(str(outcome.errors[1]))

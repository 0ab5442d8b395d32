"""Who may ask the server for what; the editor's command; traces at URLs; the command line of `resilin trace view`."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import re
import signal
import subprocess
import sys

import pytest
import viewed_traces
from viewed_traces import span

from resilin._base import env
from resilin.checkpoint.open_storage import open_storage
from resilin.errors import StorageMissing, UsageError
from resilin.launcher import main
from resilin.profiler.traces.fetching import fetched
from resilin.profiler.view import page_files
from resilin.profiler.view.editor import Editor
from resilin.testing.patience import PATIENCE_S

START = "from resilin.launcher.entry import resilin; import sys; sys.exit(resilin())"


@pytest.fixture
def server(tmp_path, served):
    """The server of a report whose place 0 is a file that is there, and place 1 is none."""
    (tmp_path / "mine.py").write_text("")
    events = [span("mine.py(4): f", 0, 10, "python_function"), span("gone.py(5): g", 20, 30, "python_function")]
    trace = viewed_traces.write(tmp_path / "a.json", events)
    program = tmp_path / "edit"
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/said\n')
    program.chmod(0o755)
    with served(trace, [tmp_path], Editor(f"{program} {{file}} {{line}}")) as one:
        yield one


def ask(server, path, method="GET", **headers):
    """What it answers: status, headers, body."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=PATIENCE_S)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, answer.headers, body


def test_the_page_its_files_and_its_data_are_there(server):
    status, headers, body = ask(server, f"/{server.secret}/")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert b"<script src=" in body
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for name in (page_files.STYLE, *page_files.SCRIPTS):
        assert ask(server, f"/{server.secret}/{name}")[0] == 200
    status, headers, body = ask(server, f"/{server.secret}/data.json")
    assert json.loads(gzip.decompress(body))["title"] == "a.json"
    assert headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    "path", ["/", "/data.json", "/wrong/data.json", "/{secret}", "/{secret}/../data.json", "/{secret}/page.html",
             "/{secret}/report.py", "/{secret}//etc/passwd", "/{secret}/%2e%2e/server.py", "http://x/{secret}/"],
)  # fmt: skip
def test_nothing_else_is_there(server, path):
    assert ask(server, path.format(secret=server.secret))[0] == 404


def test_another_host_s_name_is_refused(server):
    assert ask(server, f"/{server.secret}/", Host=f"evil.example:{server.server_port}")[0] == 404
    assert ask(server, f"/{server.secret}/", Host=f"localhost:{server.server_port}")[0] == 200


def test_it_listens_on_loopback_alone(server):
    assert server.server_address[0] == "127.0.0.1"


@pytest.mark.parametrize(
    ("path", "status"),
    [("/{secret}/open/0", 200), ("/open/0", 404), ("/{secret}/open/1", 404), ("/{secret}/open/2", 404),
     ("/{secret}/open/-1", 404), ("/{secret}/open/etc", 404), ("/{secret}/open/99999999999999", 404),
     ("/{secret}/open/", 404), ("/{secret}/", 404)],
)  # fmt: skip
def test_a_place_is_opened_by_its_number_and_the_secret(server, tmp_path, path, status):
    assert ask(server, path.format(secret=server.secret), "POST")[0] == status
    server.editor.wait()
    said = tmp_path / "said"
    assert (said.read_text() if said.exists() else "") == (f"{tmp_path}/mine.py 4\n" if status == 200 else "")


def test_an_editor_s_words_are_arguments_whatever_a_file_is_called(tmp_path):
    path = tmp_path / "a; touch harmed {line} $(touch harmed) 'x' \"y\".py"
    words = Editor("true -g {file}:{line} --line={line}").command(path, 12)
    assert words[1:] == ["-g", f"{path}:12", "--line=12"]
    assert os.path.isabs(words[0])


@pytest.mark.parametrize("template", ["", "true", "{file}", "no-such-program {file}", "true '{file}", "true {line}"])
def test_an_editor_that_cannot_be_is_refused(template):
    with pytest.raises(UsageError, match="--editor"):
        Editor(template)


def test_traces_of_a_bucket_are_copied_and_gone_afterwards(tmp_path):
    storage = open_storage("memory://view-bucket/run")
    trace = viewed_traces.write(tmp_path / "rank0.json", [span("f", 0, 10)]).read_bytes()
    for name in ("rank0.json", "deep/er/rank1.json.gz", "notes.txt"):
        with storage.writing(name) as file:
            file.write(gzip.compress(trace) if name.endswith(".gz") else trace)
    with fetched(["memory://view-bucket/run", "memory://view-bucket/run/rank0.json", "here"], 1 << 20) as paths:
        names = sorted(path.name for path in paths[0].rglob("*.json*"))
        assert names == ["rank0.json", "rank1.json.gz"]
        assert paths[1].read_bytes() == trace
        assert str(paths[2]) == "here"
    assert not paths[0].exists()
    with (
        pytest.raises(UsageError, match=r"rank1\.json\.gz: expected at most 0 MiB"),
        fetched(["memory://view-bucket/run"], 10),
    ):
        pass
    with pytest.raises(UsageError, match="no traces"), fetched(["memory://view-bucket/nothing"], 10):
        pass
    with pytest.raises(StorageMissing), fetched(["memory://view-bucket/none.json"], 10):
        pass


def test_export_writes_one_file_and_says_so(tmp_path, capsys):
    trace = viewed_traces.write(tmp_path / "a.json", [span("f", 0, 10)])
    out = tmp_path / "report.html"
    assert main.main(["trace", "view", str(trace), "--export", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}: {out.stat().st_size / 1e6:.1f} MB, for any browser\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["{place}/none.json"], "none.json"),
        (["{place}"], "no traces"),
        (["{place}/a.json", "--export", "/dev/full"], "/dev/full: cannot be written: No space left on device"),
        (["{place}/a.json", "--editor", "no-such-program {{file}}"], "there is no program 'no-such-program'"),
        (["{place}/a.json", "--megabytes", "0"], "expected at most 0 MiB of text, got more: record fewer steps"),
        (["{place}/a.json", "--megabytes", "-1"], "--megabytes: expected 0 or more, got -1"),
        (["{place}/a.json", "--port", "65536"], "--port 65536: expected 0 (any) to 65535"),
        (["{place}/a.json", "--port", "-1"], "--port -1: expected 0 (any) to 65535"),
        (["{place}/a.json", "--source", "{place}/none"], "/none: there is no such folder"),
        (["s3://"], "s3://"),
    ],
    ids=[
        "no-file",
        "no-traces",
        "full",
        "no-editor",
        "too-long",
        "negative",
        "high-port",
        "low-port",
        "no-source",
        "no-bucket",
    ],
)
def test_what_cannot_be_is_exit_code_2_and_one_line(tmp_path, capsys, words, said):
    if words != ["{place}"]:
        viewed_traces.write(tmp_path / "a.json", [span("f", 0, 10)])
    code = main.main(["trace", "view", "--no-browser", *(word.format(place=tmp_path) for word in words)])
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert said in err
    assert "Traceback" not in err


def test_a_port_that_is_taken_is_exit_code_2(tmp_path, capsys, server):
    trace = str(tmp_path / "a.json")
    assert main.main(["trace", "view", trace, "--no-browser", "--port", str(server.server_port)]) == 2
    assert f"--port {server.server_port}: cannot be listened on" in capsys.readouterr().err


def test_a_port_that_is_taken_is_told_before_traces_are_read(tmp_path, capsys, server):
    assert main.main(["trace", "view", str(tmp_path / "none"), "--no-browser", "--port", str(server.server_port)]) == 2
    assert "cannot be listened on" in capsys.readouterr().err


@pytest.mark.multiproc
def test_a_browser_that_waits_for_the_page_gets_it(tmp_path):
    """As one in a terminal does, which returns when it is closed."""
    trace = viewed_traces.write(tmp_path / "a.json", [span("f", 0, 10)])
    ask = f"import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout={PATIENCE_S}).status)"
    program = tmp_path / "browser"
    program.write_text(f'#!/bin/sh\n"{sys.executable}" -c "{ask}" "$1"\n')
    program.chmod(0o755)
    words = [sys.executable, "-c", START, "trace", "view", str(trace)]
    given = {**env.snapshot(), "DISPLAY": ":99", "BROWSER": str(program)}
    with subprocess.Popen(words, env=given, stdout=subprocess.PIPE, text=True) as run:
        try:
            assert run.stdout is not None
            assert run.stdout.readline().startswith("http://")
            assert run.stdout.readline() == "200\n"  # the browser's
            run.send_signal(signal.SIGINT)
            assert run.wait(PATIENCE_S) == 0
        finally:
            run.kill()


@pytest.mark.multiproc
def test_it_serves_until_ctrl_c_and_ends_well(tmp_path):
    trace = viewed_traces.write(tmp_path / "a.json", [span("f", 0, 10)])
    words = [sys.executable, "-c", START, "trace", "view", str(trace), "--no-browser"]
    with subprocess.Popen(words, env=env.snapshot(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        try:
            assert run.stdout is not None
            line = run.stdout.readline()
            found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)(/\S+/) until Ctrl-C\n", line)
            assert found is not None, line
            connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=PATIENCE_S)
            connection.request("GET", found[2])
            assert connection.getresponse().status == 200
            connection.close()
            run.send_signal(signal.SIGINT)
            assert (run.wait(PATIENCE_S), run.stderr.read() if run.stderr else "") == (0, "")
        finally:
            run.kill()

"""What killed processes leave behind is cleared by the next start and by `resilin doctor`, and nothing else is."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from resilin._base import owned_folder
from resilin._base.owned_folder import OwnedFolder
from resilin.launcher import doctor, leftovers, local
from resilin.testing.patience import PATIENCE_S

MAKES_ONE = """
import os, sys, time
from resilin._base.owned_folder import OwnedFolder
folder = OwnedFolder("resilin_of_a_child_")
(folder.path / "log").write_text("its last words")
print(folder.path, flush=True)
time.sleep(1000)
"""


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    """Temporary files and sockets lie in folders of this test's own."""
    place = tmp_path / "t"
    place.mkdir()
    for name in ("TMPDIR", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(place))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(local, "folders", lambda: iter((place / "resilin",)))
    everywhere = owned_folder._folders  # what processes of other tests leave in /tmp is not this test's
    monkeypatch.setattr(owned_folder, "_folders", lambda: (one for one in everywhere() if place in one.parents))
    return place


def killed_child():
    """A folder whose owner was killed."""
    with subprocess.Popen([sys.executable, "-c", MAKES_ONE], stdout=subprocess.PIPE, text=True) as child:
        path = Path(child.stdout.readline().strip())
        assert leftovers.clear() == [], "its owner lives"
        child.kill()
    return path


def test_the_folder_of_a_killed_process_is_cleared_once_and_said():
    path = killed_child()
    assert (path / "log").exists()
    found = [one for one in doctor.findings(None) if one.name == "leftovers"]
    assert [one.text for one in found] == [f"cleared what killed processes had left behind: {path}"]
    assert not path.exists()
    assert leftovers.clear() == []


def test_a_folder_is_left_alone_while_its_owner_lives_and_goes_with_it():
    with OwnedFolder("resilin_mine_") as path:
        assert owned_folder.clear() == []
        assert path.is_dir()
    assert not path.exists()


def test_only_folders_of_this_user_alone_are_cleared_and_no_link_is_followed(places, tmp_path, monkeypatch):
    (places / "resilin_without_an_owner").mkdir(mode=0o700)
    path = killed_child()
    path.chmod(0o755)
    assert owned_folder.clear() == []
    path.chmod(0o700)
    with monkeypatch.context() as other:
        other.setattr(os, "geteuid", lambda: 12345)
        assert owned_folder.clear() == []
    elsewhere = path.rename(tmp_path / "elsewhere")
    path.symlink_to(elsewhere)
    assert owned_folder.clear() == []
    assert (elsewhere / "log").exists()
    assert (places / "resilin_without_an_owner").exists()


def listening(path, hears=True):
    one = socket.socket(socket.AF_UNIX)
    one.bind(str(path))
    if hears:
        one.listen(0)
    return one


def test_sockets_are_cleared_when_nobody_hears_there_any_more():
    place = local.folder()
    listening(place / "1-dead.sock").close()
    with listening(place / "2-alive.sock"), listening(place / "3-begins.new", hears=False):
        full = [socket.socket(socket.AF_UNIX) for _ in range(4)]  # as of an agent that is stopped
        for one in full:
            one.setblocking(False)
            one.connect_ex(str(place / "2-alive.sock"))
        assert leftovers.clear() == [place / "1-dead.sock"]
        for one in full:
            one.close()
    os.utime(place / "3-begins.new", (0, 0))
    assert leftovers.clear() == [place / "2-alive.sock", place / "3-begins.new"]


@pytest.mark.multiproc
def test_the_next_start_clears_what_kill_9_of_a_whole_job_has_left(places, tmp_path):
    program = tmp_path / "program.py"
    program.write_text("import pathlib, sys, time; pathlib.Path(sys.argv[1]).touch(); time.sleep(float(sys.argv[2]))")
    command = [sys.executable, "-m", "resilin.launcher.elastic_run", "--standalone", "--tee", "3", str(program)]
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    up = tmp_path / "up"
    first = subprocess.Popen([*command, str(up), "1000"], stderr=subprocess.DEVNULL, env=env)
    while not up.exists() and first.poll() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            first.wait(0.01)
    spawner = Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()
    for pid in (*map(int, spawner), first.pid):  # the spawner first: nobody is left who could tidy up
        os.kill(pid, signal.SIGKILL)
    first.wait(PATIENCE_S)
    left = {path.name for path in (*places.glob("resilin_*"), *places.glob("resilin/*.sock"))}
    assert len(left) == 2
    again = subprocess.run([*command, str(up), "0"], capture_output=True, text=True, env=env, timeout=PATIENCE_S)
    assert again.returncode == 0
    (line,) = [one for one in again.stderr.splitlines() if "cleared" in one]
    assert line.startswith("elastic-run: cleared what killed processes had left behind: ")
    assert {Path(name).name for name in re.findall(r"/\S+?(?=,|$)", line)} == left
    assert [*places.glob("resilin_*"), *places.glob("resilin/*")] == []

"""Where commands take a job's secret from, and which they refuse."""

import subprocess
import sys

import pytest

from resilin._base import secret as job_secret
from resilin.errors import UsageError
from resilin.launcher import arguments, doctor, exit_codes, main, plan
from resilin.launcher.api import LaunchConfig
from resilin.testing.job_secret import SECRET
from resilin.testing.patience import PATIENCE_S

SHORT = "z" * 21
REFUSED = r"at least 22 random characters, got 21, which can be guessed; `elastic-run --make-secret` prints a new one"


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("raise SystemExit('it was run')")
    return str(path)


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / "secret"
        path.touch(0o600)
        path.write_text(text)
        return str(path)

    return write


@pytest.fixture(autouse=True)
def no_secret(monkeypatch):
    monkeypatch.delenv("RESILIN_SECRET", raising=False)


def made(*argv):
    return plan.make(arguments.parse(list(argv)))


@pytest.mark.multiproc
def test_the_launcher_makes_secrets_and_says_nothing_else(script, file):
    command = [sys.executable, "-m", "resilin.launcher.elastic_run", "--make-secret"]
    runs = [subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True) for _ in range(2)]
    texts = {run.stdout for run in runs}
    assert len(texts) == 2
    assert {run.stderr for run in runs} == {""}
    for text in texts:
        assert text.endswith("\n")
        assert len(bytes.fromhex(text.strip())) * 8 >= 128
        assert made("--secret-file", file(text), script).job.secret == text.strip()


@pytest.mark.parametrize("flag", ["--make-secret", "--make_secret"])
def test_a_secret_is_made_whatever_else_is_said(flag, capsys):
    with pytest.raises(SystemExit) as ended:
        arguments.parse(["--nnodes", "2", flag])
    assert ended.value.code == 0
    assert len(capsys.readouterr().out) == 65
    with pytest.raises(SystemExit) as ended:
        arguments.parse([f"{flag}=4"])
    assert ended.value.code == exit_codes.USAGE


@pytest.mark.parametrize("flags", [(), ("--standalone",), ("--rdzv-endpoint", "127.0.0.1:1")])
def test_a_short_secret_starts_no_job_wherever_it_is_given(flags, script, file, tmp_path, monkeypatch):
    config = tmp_path / "job.toml"
    config.write_text(f'secret_file = "{file(SHORT)}"\n')
    with pytest.raises(UsageError, match=f"--secret-file .*{REFUSED}"):
        made(*flags, "--secret-file", file(SHORT), script)
    with pytest.raises(UsageError, match=f"--secret-file .*{REFUSED}"):
        made(*flags, "--config", str(config), script)
    monkeypatch.setenv("RESILIN_SECRET", SHORT)
    with pytest.raises(UsageError, match=f"RESILIN_SECRET.*{REFUSED}") as caught:
        made(*flags, script)
    assert SHORT not in str(caught.value)
    assert made(*flags, "--secret-file", file(SECRET), script).job.secret == SECRET
    monkeypatch.delenv("RESILIN_SECRET")
    monkeypatch.setenv("RESILIN_SECRET_FILE", file(SHORT))
    with pytest.raises(UsageError, match=REFUSED):
        made(*flags, script)


def test_a_short_secret_starts_no_job_from_python(script, file):
    config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=1, secret_file=file(SHORT))
    with pytest.raises(UsageError, match=REFUSED):
        made(*config.flags(), script)


def test_the_doctor_tells_of_a_short_secret(monkeypatch):
    monkeypatch.setenv("RESILIN_SECRET", SHORT)
    found = doctor._store("embedded://127.0.0.1:9")
    assert (found.level, found.code) == ("bad", exit_codes.USAGE)
    assert "`elastic-run --make-secret`" in found.text


@pytest.mark.parametrize(
    "command",
    [["status", "job"], ["scale", "job", "2"], ["drain", "job", "node"]],
    ids=lambda words: words[0],
)
def test_commands_refuse_a_short_secret(command, monkeypatch, capsys):
    monkeypatch.setenv("RESILIN_SECRET", SHORT)
    assert main.main([*command, "--endpoint", "embedded://127.0.0.1:9"]) == exit_codes.USAGE
    printed = capsys.readouterr()
    assert "`elastic-run --make-secret`" in printed.out + printed.err
    assert SHORT not in printed.out + printed.err


@pytest.mark.parametrize("given", ["file", "environment"])
def test_no_store_is_served_with_a_short_secret(given, file, monkeypatch, capsys):
    if given == "environment":
        monkeypatch.setenv("RESILIN_SECRET", SHORT)
    flags = ["--secret-file", file(SHORT)] if given == "file" else []
    assert main.main(["store", "serve", "--port", "0", *flags]) == exit_codes.USAGE
    assert "`elastic-run --make-secret`" in capsys.readouterr().err


def test_an_empty_variable_is_no_secret(monkeypatch, capsys):
    monkeypatch.setenv("RESILIN_SECRET", "")
    assert job_secret.given(None) == ""
    assert main.main(["store", "serve", "--host", "0.0.0.0", "--port", "0"]) == exit_codes.REFUSED
    assert "without a secret" in capsys.readouterr().err


def test_a_password_of_an_etcd_may_be_short(script, file):
    conf = f"user=bob,password_file={file('short')}"
    flags = ["--nnodes", "2", "--local-addr", "127.0.0.1", "--rdzv-backend", "etcd", "--rdzv-endpoint", "127.0.0.1:1"]
    assert made(*flags, "--rdzv-conf", conf, script).meeting.login.password == "short"


def test_22_characters_are_enough(file, script):
    assert len(made("--secret-file", file(SECRET[:22]), script).job.secret) == 22

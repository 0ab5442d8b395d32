"""A job meets in an etcd that asks for a user."""

import os
import subprocess
import sys

import own_words
import pytest

from resilin.testing.etcd import EtcdCluster
from resilin.testing.patience import PATIENCE_S

pytestmark = pytest.mark.multiproc
PASSWORD = "p@ss:w?rd/%41"


@pytest.fixture(scope="module")
def etcd():
    with EtcdCluster() as cluster:
        for arguments in (
            ["user", "add", f"root:{PASSWORD}", "--interactive=false"],
            ["user", "grant-role", "root", "root"],
            ["auth", "enable"],
        ):
            cluster.ctl(*arguments)
        yield cluster.endpoints[0]


@pytest.fixture
def launch(etcd, tmp_path):
    def start(conf, **env):
        program = tmp_path / "program.py"
        program.write_text("print('trained')")
        command = [sys.executable, "-m", "resilin.launcher.elastic_run", "--nnodes", "1", "--rdzv-backend", "etcd"]
        command += ["--rdzv-endpoint", etcd, "--rdzv-conf", f"{conf},read_timeout=5", program]
        clean = {name: value for name, value in os.environ.items() if name != "RESILIN_ETCD_PASSWORD"}
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE_S, env={**clean, **env}, check=False
        )
        done.stderr = own_words.of(done.stderr)
        return done

    return start


def test_a_job_meets_with_a_password_from_a_file(launch, tmp_path):
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\n")
    file.chmod(0o600)
    done = launch(f"user=root,password_file={file}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "trained\n", "")


def test_a_job_meets_with_a_password_from_the_environment(launch):
    done = launch("user=root", RESILIN_ETCD_PASSWORD=PASSWORD)
    assert (done.returncode, done.stdout, done.stderr) == (0, "trained\n", "")


@pytest.mark.parametrize(("conf", "password", "code"), [("user=root", "wrong-one", 5), ("", "", 5)])
def test_a_wrong_or_missing_user_is_refused_in_one_line_without_the_password(launch, conf, password, code):
    done = launch(conf, RESILIN_ETCD_PASSWORD=password)
    assert done.returncode == code
    assert len(done.stderr.splitlines()) == 1
    assert "wrong-one" not in done.stderr

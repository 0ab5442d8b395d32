"""The floors check finds what it promises to find, and says it in one line."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "check_floors.py"


@pytest.fixture(scope="module")
def floors():
    spec = importlib.util.spec_from_file_location("check_floors", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture
def violations(floors, tmp_path):
    """violations({"core/a.py": source, ...}) -> the report's lines for a package made of these files."""

    def run(files: dict[str, str]) -> list[str]:
        for name, source in {"__init__.py": "", **files}.items():
            path = tmp_path / "resilin" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source)
            for parent in path.relative_to(tmp_path / "resilin").parents:
                init = tmp_path / "resilin" / parent / "__init__.py"
                if not init.exists():
                    init.write_text("")
        return [str(violation) for violation in floors.check(tmp_path)]

    return run


def test_an_import_from_a_lower_floor_is_fine(violations):
    assert violations({"core/a.py": "import numpy\n", "nn/b.py": "from resilin.core import a\n"}) == []


def test_an_import_from_a_higher_floor_is_named_with_file_and_line(violations):
    (line,) = violations({"nn/b.py": "", "core/a.py": "\nfrom resilin.nn import b\n"})
    assert line.startswith("resilin/core/a.py:2: core imports resilin.nn.b, expected only ")


def test_siblings_are_independent(violations):
    (line,) = violations({"zero/b.py": "", "ddp/a.py": "import resilin.zero.b\n"})
    assert "ddp imports resilin.zero.b" in line


def test_optimizers_do_not_know_modules(violations):
    (line,) = violations({"nn/p.py": "", "optim/sgd.py": "from ..nn.p import Parameter\n"})
    assert "optim imports resilin.nn.p" in line


def test_averages_of_models_do_know_modules(violations):
    assert not violations({"nn/p.py": "", "optim/swa_utils.py": "from ..nn.p import Module\n"})


def test_a_type_only_import_obeys_the_floors_too(violations):
    source = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from resilin.nn import b\n"
    assert len(violations({"nn/b.py": "", "core/a.py": source})) == 1


def test_an_import_of_a_place_is_one_of_its_home(violations):
    table = (ROOT / "resilin" / "_base" / "places.py").read_text()
    files = {"_base/places.py": table, "ddp/__init__.py": "", "distributed/__init__.py": "", "launcher/__init__.py": ""}
    (line,) = violations({**files, "nn/a.py": "from resilin.nn.parallel import DistributedDataParallel\n"})
    assert "resilin/nn/a.py:1: nn imports resilin.ddp, expected only" in line
    (line,) = violations({**files, "nn/a.py": "import resilin.distributed\n"})
    assert "resilin/nn/a.py:1: nn imports resilin.distributed, expected only" in line
    (line,) = violations({**files, "nn/a.py": "from resilin.distributed.launcher import LaunchConfig\n"})
    assert "resilin/nn/a.py:1: nn imports resilin.launcher.api, expected only" in line
    assert violations({**files, "nn/a.py": "from resilin.fft import Tensor\n", "core/tensor.py": ""}) == []


def test_what_the_table_adds_to_a_module_may_be_told_to_type_checkers(violations):
    table = (ROOT / "resilin" / "_base" / "places.py").read_text()
    said = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from resilin.nn.parallel import {name} as {name}\n"
    files = {"_base/places.py": table, "ddp/__init__.py": "", "nn/modules/rnn.py": ""}
    assert violations({**files, "nn/modules/__init__.py": said.format(name="Linear")}) == []
    (line,) = violations({**files, "nn/modules/__init__.py": said.format(name="DistributedDataParallel")})
    assert "nn imports resilin.ddp, expected only" in line


def test_nobody_imports_testing(violations):
    (line,) = violations({"testing/clock.py": "", "elastic/agent/agent.py": "from resilin.testing import clock\n"})
    assert "elastic's agent side imports resilin.testing.clock" in line


def test_a_package_without_a_floor_is_reported(violations):
    (line,) = violations({"magic/a.py": ""})[:1]
    assert "'magic' has no floor" in line


def test_the_agent_side_may_not_use_what_the_worker_side_may(violations):
    files = {"core/a.py": "", "elastic/worker/state.py": "from resilin.core import a\n"}
    assert violations(files) == []
    (line,) = violations({"elastic/agent/agent.py": "import asyncio\nfrom resilin.core import a\n"})[:1]
    assert line.startswith("resilin/elastic/agent/agent.py:2: ")


def test_an_agent_that_reaches_numpy_through_others_is_reported_with_the_chain(violations):
    lines = violations(
        {"_base/helper.py": "import numpy\n", "launcher/main.py": "from resilin._base.helper import thing\n"}
    )
    assert "resilin/launcher/main.py:1: loads numpy through resilin._base.helper -> numpy, expected" in lines[-1]


def test_a_lazy_package_hides_nothing(violations):
    lazy = '_WHERE = {"State": "resilin.elastic.worker.state"}\n\ndef __getattr__(name):\n    return name\n'
    files = {"elastic/__init__.py": lazy, "elastic/worker/state.py": "import numpy\n"}
    assert violations(files) == []
    lines = violations({"launcher/main.py": "from resilin.elastic import State\n"})
    assert any("loads numpy through" in line for line in lines)


def test_a_package_root_that_loads_numpy_counts_for_every_module_below(violations):
    lines = violations({"store/__init__.py": "", "store/a.py": "", "__init__.py": "import numpy\n"})
    assert any(line.startswith("resilin/store/a.py:1: loads numpy") for line in lines)


def test_cycles_are_reported(violations):
    (line,) = violations({"core/a.py": "from resilin.core import b\n", "core/b.py": "from resilin.core.a import x\n"})
    assert "import cycle resilin.core.a -> resilin.core.b -> resilin.core.a" in line


def test_a_type_only_import_closes_a_cycle_too(violations):
    source = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from resilin.core.b import B\n"
    (line,) = violations({"core/a.py": source, "core/b.py": "from resilin.core.a import A\n"})
    assert line.startswith("resilin/core/a.py:3: import cycle resilin.core.a -> resilin.core.b -> resilin.core.a")


def test_a_type_only_import_of_what_imports_nothing_back_is_no_cycle(violations):
    source = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from resilin.core.b import B\n"
    assert violations({"core/a.py": source, "core/b.py": ""}) == []


def test_an_import_that_runs_up_a_layer_is_named(violations):
    files = {"distributed/api/a.py": "", "distributed/wire/b.py": "\nfrom resilin.distributed.api import a\n"}
    (line,) = violations(files)
    assert line == (
        "resilin/distributed/wire/b.py:2: distributed/wire imports resilin.distributed.api.a, expected only wire, "
        "move the code down a layer or hand the object in from above"
    )


def test_a_type_only_import_that_runs_up_a_layer_is_named_too(violations):
    source = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..agent.a import A\n"
    (line,) = violations({"elastic/agent/a.py": "", "elastic/membership/b.py": source})
    assert line.startswith("resilin/elastic/membership/b.py:3: elastic/membership imports resilin.elastic.agent.a, ")


def test_an_import_down_the_layers_or_within_one_is_fine(violations):
    down = "from resilin.distributed.wire import b\nfrom resilin.distributed.api import c\n"
    assert violations({"distributed/api/a.py": down, "distributed/api/c.py": "", "distributed/wire/b.py": ""}) == []


def test_files_beside_the_folders_of_a_package_are_in_no_layer(violations):
    files = {
        "distributed/top.py": "from resilin.distributed.api import a\n",
        "distributed/api/a.py": "",
        "distributed/wire/b.py": "from resilin.distributed import top\n",
    }
    assert violations(files) == []


def test_a_package_without_layers_may_import_among_its_folders_as_it_likes(violations):
    files = {"core/api/a.py": "", "core/wire/b.py": "from resilin.core.api import a\n"}
    assert violations(files) == []


def test_an_import_inside_a_function_is_reported(violations):
    (line,) = violations({"core/a.py": "def f():\n    import json\n"})
    assert "resilin/core/a.py:2: imports json inside a function" in line


def test_import_module_needs_a_declared_lazy_file(violations):
    source = "import importlib\nimportlib.import_module('x')\n"
    (line,) = violations({"core/a.py": source})
    assert "resilin/core/a.py:2: calls import_module" in line
    lazy = "import importlib\ndef __getattr__(name):\n    return importlib.import_module(name)\n"
    assert violations({"core/a.py": "", "core/__init__.py": lazy}) == []


def test_an_undeclared_third_party_package_is_reported(violations):
    (line,) = violations({"core/a.py": "import requests\n"})
    assert "imports requests, expected a declared dependency" in line


def test_grpc_stays_in_the_store(violations):
    assert violations({"store/a.py": "import grpc\n"}) == []
    (line,) = violations({"distributed/a.py": "import grpc.aio\n"})
    assert "expected only in resilin.store" in line


def test_an_optional_client_lives_in_one_file(violations):
    assert violations({"core/backends/cupy.py": "def load():\n    import cupy\n"}) == []
    assert len(violations({"core/other.py": "import cupy\n"})) == 1


def test_the_command_line_exits_nonzero_with_one_line_per_violation(tmp_path):
    (tmp_path / "resilin" / "core").mkdir(parents=True)
    (tmp_path / "resilin" / "__init__.py").write_text("")
    (tmp_path / "resilin" / "core" / "__init__.py").write_text("import requests\n")
    done = subprocess.run(
        [sys.executable, SCRIPT, tmp_path], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 1
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr == ""

"""One truth about GPUs: docs/gpu.md says what ran and what is not there, and no page or docstring says otherwise."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import resilin as torch
from resilin import distributed as dist
from resilin import nn
from resilin.errors import UsageError
from resilin.resharding import state_slices
from resilin.testing.ranks import run_ranks
from resilin.zero import ZeroRedundancyOptimizer

ROOT = Path(__file__).resolve().parents[2]
GPU_PAGE = ROOT / "docs" / "gpu.md"
PACKAGE = ROOT / "resilin"

RAN, ABSENT = "## What ran, when, on what", "## What is not there"

# Pages that tell a reader what there is of GPUs: each says what ran, that several GPUs did not, and where to read on.
TELLING = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "docs" / "parity.md",
    ROOT / "docs" / "collectives.md",
    Path(str(importlib.import_module("resilin.distributed").__file__)).parent / "README.md",
]

SUBJECT = re.compile(r"\b(GPUs?|CUDA|NCCL|cuda_ipc|CuPy|H100)\b", re.IGNORECASE)
DENIAL = re.compile(
    r"\bnot (?:\w+ ){0,3}yet\b|\byet to\b|\bdo(?:es)? not exist"
    r"|\bnot (?:been )?(?:run|tested|tried|proven)\b|\bnever (?:been )?(?:ran|run|tested|tried|at hand)\b"
    r"|\bmissing:|\bnot (?:there|supported|available)\b|\bno (?:NCCL|CUDA|GPUs?|GPU support) (?:here|yet|on a device)\b"
    r"|\bonly over (?:a )?stand-ins?\b|\bon no GPU\b",
    re.IGNORECASE,
)
CPU_ONLY = re.compile(
    r"\bCPUs? only\b|\bonly (?:on|for) (?:the )?CPUs?\b|\b(?:Linux and|runs on|works on|is for|are for) CPUs\b",
    re.IGNORECASE,
)


def table(heading: str) -> list[list[str]]:
    """The rows below `heading` in docs/gpu.md, without the table's head."""
    section = GPU_PAGE.read_text(encoding="utf-8").partition(f"\n{heading}\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def not_run() -> list[str]:
    """What the page says was never run, in the words that other pages have to use."""
    return [row[2] for row in table(RAN) if "not run" in row[3]]


def limits() -> re.Pattern[str]:
    """What may be denied elsewhere: the subjects of the table of what is not there, and of what was not run."""
    subjects = [*not_run(), *(row[0] for row in table(ABSENT))]
    words = {word for text in subjects for word in re.findall(r"`(\w+)`|(several GPUs|AMD|TF32|graphs|ZeRO)", text)}
    return re.compile("|".join(re.escape(word) for pair in words for word in pair if word))


def sentences(text: str) -> list[str]:
    """Sentences of prose and cells of tables; code blocks are left out."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    blocks = re.split(r"\n\s*\n|\n(?=\s*[-|#])", text)
    cells = [cell for block in blocks for cell in (block.split("|") if block.lstrip().startswith("|") else [block])]
    parts = (part for cell in cells for part in re.split(r"(?<=[.!?;])\s+", cell))
    return [" ".join(part.split()) for part in parts if part.strip()]


def contradictions(text: str) -> list[str]:
    """The sentences that deny something of GPUs which docs/gpu.md does not deny."""
    flat = " ".join(text.split())
    if not SUBJECT.search(flat) and not CPU_ONLY.search(flat):
        return []
    allowed = limits()
    return [
        one
        for one in sentences(text)
        if ((SUBJECT.search(one) and DENIAL.search(one)) or CPU_ONLY.search(one)) and not allowed.search(one)
    ]


def pages() -> list[Path]:
    folders = [ROOT / "docs", ROOT / "examples", ROOT / "benchmarks", PACKAGE]
    return sorted({*ROOT.glob("*.md"), *(page for folder in folders for page in folder.rglob("*.md"))} - {GPU_PAGE})


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", pages(), ids=name)
def test_no_page_denies_what_the_page_of_gpus_does_not(page: Path) -> None:
    assert contradictions(page.read_text(encoding="utf-8")) == [], f"see the tables of {name(GPU_PAGE)}"


def test_no_docstring_denies_what_the_page_of_gpus_does_not() -> None:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        flat = " ".join(text.split())
        if not (DENIAL.search(flat) and SUBJECT.search(flat)) and not CPU_ONLY.search(flat):
            continue  # reading it as Python takes longer
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                for sentence in contradictions(ast.get_docstring(node) or ""):
                    found[f"{name(path)}: {getattr(node, 'name', 'its docstring')}"] = sentence
    assert found == {}, f"see the tables of {name(GPU_PAGE)}"


@pytest.mark.parametrize("page", TELLING, ids=name)
def test_a_page_that_tells_of_gpus_names_the_card_what_did_not_run_and_the_page(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    cards = {card for row in table(RAN) if " passed" in row[3] for card in re.findall(r"\bH[12]00\b", row[2])}
    assert cards, "docs/gpu.md names no card on which tests passed"
    for word in [*cards, *not_run()]:
        assert word.lower() in text.lower(), f"{name(page)} does not say what became of: {word}"
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", text)
    assert GPU_PAGE in [(page.parent / link).resolve() for link in links if "://" not in link]


@pytest.mark.parametrize(
    "sentence",
    [
        "Tensors on GPUs go through CuPy, and have not been run on one yet.",
        "What does not exist yet: NCCL, pipelines, RPC.",
        "part: CUDA 12 through CuPy, every op, proven on a stand-in and not yet on a GPU ([gpu.md](gpu.md))",
        "every function of torch.distributed on CPUs, coalescing; no NCCL on a device yet",
        "This is version 0.1, on Linux and CPUs.",
        "tested on an H100, `resilin.cuda`, CUDA kernels; proven on a stand-in, not yet on a GPU.",
        "GPU support is generic and has not been run on a GPU yet.",
        "Gradients are summed on the CPU only.",
        "| GPUs | CUDA tensors\nare not supported |",
    ],
)
def test_a_claim_that_is_out_of_date_is_found(sentence: str) -> None:
    assert contradictions(sentence) != []


@pytest.mark.parametrize(
    "sentence",
    [
        "Collectives over `nccl` ran on one H100; several GPUs were never at hand.",
        "`DistributedDataParallel` of modules on a GPU has run on no GPU.",
        "CUDA kernels are compiled without a GPU.",
        "Tensors on the CPU never load it. A GPU's tensors go by way of the host.",
    ],
)
def test_what_the_page_says_may_be_said_elsewhere(sentence: str) -> None:
    assert contradictions(sentence) == []


def test_the_tests_that_the_table_names_exist() -> None:
    rows = table(ABSENT)
    assert rows
    for test in re.findall(r"`(tests/[\w/.]+)`", " ".join(row[2] for row in rows)):
        assert (ROOT / test).exists(), test


# ------------------------------------------------------------------------- what is not there is as the page says


def model(where: str) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to(where)


def test_a_divided_optimizer_steps_on_another_device_as_on_the_cpu() -> None:
    def train(where: str) -> list[np.ndarray]:
        net = model(where)
        optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.AdamW, lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            net(torch.ones(3, 4).to(where)).square().mean().backward()
            for parameter in net.parameters():
                dist.all_reduce(parameter.grad, dist.ReduceOp.AVG)
            optimizer.step()
        return [parameter.detach().cpu().numpy() for parameter in net.parameters()]

    def run(where: str) -> list[list[np.ndarray]]:
        return run_ranks(2, lambda rank: train(where), backend="cpu:gloo,sim:gloo").results()

    for ours, expected in zip(run("sim:1"), run("cpu"), strict=True):
        for a, b in zip(ours, expected, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)


def test_state_on_another_device_has_no_second_copy_on_the_host() -> None:
    state_slices.check_on_host(torch.ones(2), "")
    elsewhere: Any = SimpleNamespace(_array=object(), _dev="cuda:0")  # not numpy's
    with pytest.raises(UsageError, match=r"state on cuda:0 has no second copy on the host; use the CPU"):
        state_slices.check_on_host(elsewhere, "use the CPU")


def test_the_backends_of_the_page_are_known() -> None:
    for backend in ("nccl", "cuda_ipc"):
        assert backend in dist.Backend.backend_list

"""The memory timeline says how much is in use and for what, in PyTorch's files and as a page."""

from __future__ import annotations

import gzip
import json
import re
from html.parser import HTMLParser

import pytest

import resilin
from resilin._base.trace import SpanKind
from resilin.profiler import memory_owners, profile
from resilin.profiler.memory_owners import Category, Owned
from resilin.profiler.memory_page import page
from resilin.profiler.memory_timeline import ORDER, MemoryTimeline


def categories(made, owned=()):
    timeline = MemoryTimeline(made.recorded(profile_memory=True), list(owned))
    return {block.address: block.category for block in timeline.blocks}


def test_forward_backward_and_optimizer_tell_what_memory_is_for(made):
    made.span("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 50, SpanKind.DATA)
    made.memory(10, 64, address=100)  # lives on: a batch
    made.memory(20, 64, address=200).memory(30, -64, address=200)
    made.span("aten::linear", 100, 200, link=1)
    made.memory(110, 64, address=300)
    made.memory(120, 64, address=400).memory(130, -64, address=400)
    made.span("aten::argmax", 210, 220).memory(215, 8, address=500)
    made.span("AddmmBackward0", 300, 400, SpanKind.BACKWARD, link=1)
    made.memory(310, 64, address=600)
    made.memory(320, 64, address=700).memory(450, -64, address=700)
    made.span("Optimizer.step#SGD.step", 500, 600, SpanKind.OPTIMIZER)
    made.memory(510, 64, address=800)
    made.memory(520, 64, address=900).memory(530, -64, address=900)
    made.memory(700, 64, address=1000)
    assert categories(made) == {
        100: Category.INPUT,
        200: Category.TEMPORARY,
        300: Category.ACTIVATION,
        400: Category.TEMPORARY,
        500: None,  # without a node it is no part of the graph
        600: Category.GRADIENT,
        700: Category.AUTOGRAD_DETAIL,
        800: Category.OPTIMIZER_STATE,
        900: Category.TEMPORARY,
        1000: None,
    }


def test_a_gradient_that_is_freed_in_the_next_step_is_one(made):
    made.span("MmBackward0", 0, 10, SpanKind.BACKWARD).memory(5, 64, address=1)
    made.span("Optimizer.step#SGD.step", 20, 30, SpanKind.OPTIMIZER)
    made.memory(40, -64, address=1)
    assert categories(made) == {1: Category.GRADIENT}


def test_owners_that_live_at_the_end_say_whose_memory_it_is(made):
    made.memory(10, 256, address=1000).memory(20, 64, address=5000).memory(30, -64, address=5000)
    owned = [
        Owned(1064, 64, Category.PARAMETER),  # in a block that was recorded
        Owned(5000, 64, Category.GRADIENT),  # where a block was that is gone: there before
        Owned(5032, 16, Category.GRADIENT),  # a part of the same
        Owned(9000, 32, Category.OPTIMIZER_STATE),
    ]
    timeline = MemoryTimeline(made.recorded(profile_memory=True), owned)
    found = [(block.address, block.nbytes, block.born_ns, block.category) for block in timeline.blocks]
    assert found == [
        (1000, 256, 10_000, Category.PARAMETER),
        (5000, 64, 20_000, None),
        (5000, 64, None, Category.GRADIENT),
        (9000, 32, None, Category.OPTIMIZER_STATE),
    ]


def test_changes_and_sizes_are_pytorchs_files(made):
    made.memory(10, 64, address=1).memory(20, -64, address=1).memory(30, -8, address=2)
    timeline = MemoryTimeline(made.recorded(profile_memory=True), [])
    wall = 1_700_000_000 * 10**9
    assert timeline.changes() == [
        (-1, 1, 8, 7),
        (wall + 10_000, 2, 64, 7),
        (wall + 20_000, 4, -64, 7),
        (wall + 30_000, 4, -8, 7),
    ]
    times, sizes = timeline.sizes()
    assert [time - wall // 1000 for time in times] == [10, 20, 30]
    assert [row[-1] for row in sizes] == [72, 8, 0]
    assert {len(row) for row in sizes} == {1 + len(ORDER)}


@pytest.fixture
def profiled():
    """A profile of a step of training."""
    model = resilin.nn.Linear(64, 64)
    optimizer = resilin.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = resilin.randn(32, 64)
    with profile(profile_memory=True) as prof:
        model(x).sum().backward()
        optimizer.step()
    return prof, model, optimizer


def test_live_objects_are_found(profiled):
    _, model, optimizer = profiled
    found = {owned.address: (owned.nbytes, owned.category) for owned in memory_owners.find()}
    weight = model.weight
    assert found[weight.data_ptr()] == (64 * 64 * 4, Category.PARAMETER)
    assert found[weight.grad.data_ptr()] == (64 * 64 * 4, Category.GRADIENT)
    assert found[optimizer.state[weight]["momentum_buffer"].data_ptr()] == (64 * 64 * 4, Category.OPTIMIZER_STATE)


def test_files_are_written_by_their_ending(profiled, tmp_path):
    prof, *_ = profiled
    for name in ("a.json", "a.json.gz", "a.raw.json.gz", "a.html"):
        prof.export_memory_timeline(tmp_path / name)
    times, sizes = json.loads((tmp_path / "a.json").read_text())
    assert [times, sizes] == json.loads(gzip.decompress((tmp_path / "a.json.gz").read_bytes()))
    assert len(times) == len(sizes) > 0
    assert max(row[1 + ORDER.index(Category.PARAMETER)] for row in sizes) >= 64 * 64 * 4
    changes = json.loads(gzip.decompress((tmp_path / "a.raw.json.gz").read_bytes()))
    assert {len(change) for change in changes} == {4}
    assert "<svg" in (tmp_path / "a.html").read_text()


def test_a_device_whose_memory_is_not_recorded_is_refused(profiled, tmp_path):
    with pytest.raises(ValueError, match="expected device 'cpu'"):
        profiled[0].export_memory_timeline(tmp_path / "a.json", device="cuda:0")


def test_without_profile_memory_there_is_none(tmp_path):
    with profile() as prof:
        pass
    with pytest.raises(ValueError, match="profile_memory=True required"):
        prof.export_memory_timeline(tmp_path / "a.json")


class Closed(HTMLParser):
    """Checks that what is opened is closed."""

    def __init__(self):
        super().__init__()
        self.open, self.polygons = [], []

    def handle_starttag(self, tag, attrs):
        if tag != "meta":
            self.open.append(tag)
        if tag == "polygon":
            self.polygons.append(dict(attrs)["points"])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_draws_each_category_and_asks_nobody_for_anything():
    times = list(range(0, 20_000, 2))
    sizes = [[0, 1000, 0, time % 500] for time in times]
    text = page(times, sizes, ["parameters", "never", "<activations>"])
    checker = Closed()
    checker.feed(text)
    assert checker.open == []
    assert len(checker.polygons) == 2
    assert all(len(points.split()) < 10_000 for points in checker.polygons), "one column of pixels is one point"
    assert "&lt;activations&gt;" in text
    assert "1.46 KB" in text  # 1000 + 498 bytes at most
    assert not re.search(r"(src|href|url)\s*[=(]|https?:|<script|@import", text)


def test_a_page_of_nothing_says_so():
    assert "nothing was recorded" in page([], [], ["parameters"])

"""Drawings show what happens when."""

from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st
from plans import generated

from resilin.pipeline.plan import draw
from resilin.pipeline.plan.action import computations
from resilin.pipeline.plan.communication import add_communication
from resilin.pipeline.plan.generate import generate
from resilin.pipeline.plan.simulate import Times, simulate
from resilin.pipeline.plan.svg import svg

NAMESPACE = {"svg": "http://www.w3.org/2000/svg"}


def test_1f1b_looks_as_in_the_books():
    assert draw.text(simulate(generate("1F1B", 3, 4))).splitlines() == [
        "rank 0  F0 F1 F2 ·  ·  ·  ·  B0─── F3 B1─── ·  B2─── ·  B3───",
        "rank 1  ·  F0 F1 ·  ·  B0─── F2 B1─── F3 B2─── ·  B3─── ·  ·",
        "rank 2  ·  ·  F0 B0─── F1 B1─── F2 B2─── F3 B3─── ·  ·  ·  ·",
    ]


def test_stages_are_named_where_ranks_have_several():
    assert draw.text(simulate(generate("ZBVZeroBubble", 2, 1))).splitlines() == [
        "rank 0  0F0 ·   ·   3F0 3I0 3W0 ·   0I0 0W0",
        "rank 1  ·   1F0 2F0 ·   ·   2I0 1I0 2W0 1W0",
    ]


def test_communication_is_left_out():
    plan = generate("GPipe", 2, 2)
    assert draw.text(simulate(add_communication(plan))) == draw.text(simulate(plan))


@given(generated(ranks=4, microbatches=6), st.floats(0.1, 5), st.floats(0.1, 5), st.floats(0, 3))
def test_every_computation_is_a_block_of_the_picture(plan, forward, weight, hop):
    timeline = simulate(plan, Times(forward=forward, backward_weight=weight, hop=hop))
    drawn = draw.text(timeline).splitlines()
    assert [line.split()[:2] for line in drawn] == [["rank", str(rank)] for rank in range(plan.ranks)]
    picture = ElementTree.fromstring(svg(timeline))
    blocks = picture.findall("svg:g/svg:rect", NAMESPACE)
    assert len(blocks) == sum(len(list(computations(row))) for row in plan.actions)
    width = float(picture.get("width"))
    for block in blocks:
        assert 0 <= float(block.get("x")) <= float(block.get("x")) + float(block.get("width")) <= width


def test_the_picture_says_what_it_is_of():
    picture = svg(simulate(generate("1F1B", 2, 2)))
    assert "1F1B: 2 ranks, 2 stages, 2 micro-batches; bubble 33.3 %" in picture
    assert "<title>0B1: 7 to 9</title>" in picture
    assert "&lt;b&gt;" in svg(simulate(generate("1F1B", 2, 2)), title="<b>")

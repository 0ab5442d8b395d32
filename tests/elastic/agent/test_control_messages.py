"""The protocol between agent and worker: every message survives the wire, nothing malformed passes."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resilin._base import framing
from resilin.elastic import control

TEXT = st.text(max_size=20)
NUMBER = st.integers(0, 1 << 40)
MEMBER = st.builds(control.Member, rank=NUMBER, node=TEXT, slot=NUMBER, incarnation=NUMBER, host=TEXT)
MESSAGES = st.one_of(
    st.builds(control.Hello, pid=NUMBER, endpoint=TEXT, limit=NUMBER),
    st.builds(control.Entering, generation=NUMBER),
    st.builds(control.Interrupted, generation=NUMBER, reason=TEXT),
    st.builds(control.Progress, generation=NUMBER, step=NUMBER, at=TEXT),
    st.builds(control.Committed, generation=NUMBER, step=NUMBER, wall=st.floats(0, 1e10)),
    st.builds(control.Stuck, generation=NUMBER, ranks=st.lists(NUMBER, max_size=3).map(tuple), reason=TEXT),
    st.builds(control.Waiting, generation=NUMBER),
    st.builds(control.Leaving, reason=TEXT),
    st.builds(control.Stay),
    st.builds(control.Left, reason=TEXT),
    st.builds(control.Failed, report=st.dictionaries(TEXT, TEXT, max_size=4)),
    st.builds(control.Done, generation=NUMBER),
    st.builds(control.Recorded, id=TEXT, path=TEXT, error=TEXT, over=st.booleans()),
    st.builds(
        control.World,
        number=NUMBER,
        rank=NUMBER,
        world_size=NUMBER,
        local_rank=NUMBER,
        local_world_size=NUMBER,
        node_rank=NUMBER,
        node_count=NUMBER,
        endpoints=st.lists(TEXT, max_size=3).map(tuple),
        members=st.lists(MEMBER, max_size=3).map(tuple),
        reason=TEXT,
    ),
    st.builds(control.Standby, reason=TEXT),
    st.builds(control.Abort, generation=NUMBER, reason=TEXT, ranks=st.lists(NUMBER, max_size=3).map(tuple)),
    st.builds(control.Pending, number=NUMBER),
    st.builds(control.Leave, reason=TEXT),
    st.builds(control.Record, id=TEXT, folder=TEXT, seconds=st.floats(0, 1e5), nbytes=NUMBER),
    st.builds(control.Finish),
)


@given(st.lists(MESSAGES, max_size=5), st.integers(1, 50))
def test_messages_survive_the_wire_however_it_is_cut(messages, size):
    stream = b"".join(control.encode(message) for message in messages)
    decoder = control.Decoder()
    found = []
    for start in range(0, len(stream), size):
        found += decoder.feed(stream[start : start + size])
    assert found == messages


def test_every_message_is_tried():
    kinds = {strategy_kind for strategy_kind in control.MESSAGES}
    assert kinds == {
        "hello", "entering", "progress", "committed", "pause", "interrupted", "stuck", "waiting", "leaving", "left",
        "failed", "done", "recorded", "world", "standby", "abort", "pending", "leave", "stay", "record", "finish",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"\xff", "not JSON"),
        (b"[]", "unknown kind"),
        (b'{"kind": "nope"}', "nope"),
        (b'{"kind": "done"}', "expected the fields generation"),
        (b'{"kind": "done", "generation": "1"}', r"Done\.generation: expected int, got '1'"),
        (b'{"kind": "done", "generation": true}', "expected int"),
        (b'{"kind": "done", "generation": 1, "more": 2}', "expected the fields"),
        (b'{"kind": "abort", "generation": 1, "reason": "", "ranks": 3}', "expected a list"),
        (b'{"kind": "abort", "generation": 1, "reason": "", "ranks": ["x"]}', "expected int"),
    ],
)
def test_a_malformed_message_is_one_error_that_names_the_field(body, says):
    with pytest.raises(control.ControlError, match=says):
        control.decode(body)


def test_an_announced_length_beyond_the_cap_is_refused_before_it_is_read():
    decoder = control.Decoder()
    with pytest.raises(framing.FrameError, match="limit"):
        list(decoder.feed(b"\xff\xff\xff\xff"))


def test_the_wire_format_is_plain_json_with_a_kind():
    payload = control.encode(control.Abort(generation=3, reason="rank 1 failed", ranks=(1,)))[4:]
    assert json.loads(payload) == {"kind": "abort", "generation": 3, "reason": "rank 1 failed", "ranks": [1]}

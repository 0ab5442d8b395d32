"""What one rank tells the others of a group's end."""

import pytest

from resilin.distributed.wire.error_codec import decode_reason, encode_reason
from resilin.errors import CollectiveTimeout, GroupAborted, PeerLost


@pytest.mark.parametrize("kind", [PeerLost, CollectiveTimeout])
def test_a_reason_that_is_passed_on_says_once_where_it_was_seen(kind):
    first = decode_reason(encode_reason(kind("rank 0 did not arrive", [0]), 1), 1)
    again = decode_reason(encode_reason(first, 2), 2)
    for heard in (first, again):
        assert type(heard) is kind
        assert heard.ranks == {0}
        assert str(heard) == f"rank 0 did not arrive ({'seen by' if kind is PeerLost else 'on'} rank 1)"


def test_an_abort_that_is_passed_on_names_the_rank_that_began_it_and_once():
    told = encode_reason(ValueError("why"), 5)
    for passed_on_by in (5, 3, 4, 0):
        heard = decode_reason(told, passed_on_by)
        assert isinstance(heard, GroupAborted)
        assert isinstance(heard, ValueError), "as on the rank that failed"
        assert str(heard) == "rank 5 aborted the group: ValueError: why"
        told = encode_reason(heard, passed_on_by)


def test_an_abort_with_an_error_of_another_group_names_the_rank_that_passed_it_in():
    other = GroupAborted("all_reduce #1, group 'other', rank 0 of 2: rank 1 aborted the group: ValueError: why")
    assert str(decode_reason(encode_reason(other, 2), 2)) == f"rank 2 aborted the group: GroupAborted: {other}"


@pytest.mark.parametrize(
    "text",
    [
        *("", "x", "[]", "{}", "null", "[" * 100_000, '{"kind":' * 100_000),
        *('{"kind": "PeerLost", "ranks": [1e999], "text": ""}', '{"kind": "PeerLost", "ranks": [[]], "text": ""}'),
        *('{"kind": "PeerLost", "ranks": 3, "text": ""}', '{"kind": [], "ranks": [Infinity], "text": {}}'),
    ],
    ids=lambda text: text[:20],
)
def test_what_is_no_reason_ends_the_group_all_the_same(text):
    heard = decode_reason(text, 4)
    assert type(heard) is GroupAborted
    assert str(heard).startswith("rank 4 aborted the group: ")

"""What one rank tells the others of a group's end."""

import pytest

from resilin.dist.reasons import decode_reason, encode_reason
from resilin.errors import CollectiveTimeout, PeerLost


@pytest.mark.parametrize("kind", [PeerLost, CollectiveTimeout])
def test_a_reason_that_is_passed_on_says_once_where_it_was_seen(kind):
    first = decode_reason(encode_reason(kind("rank 0 did not arrive", [0]), 1), 1)
    again = decode_reason(encode_reason(first, 2), 2)
    for heard in (first, again):
        assert type(heard) is kind
        assert heard.ranks == {0}
        assert str(heard) == f"rank 0 did not arrive ({'seen by' if kind is PeerLost else 'on'} rank 1)"

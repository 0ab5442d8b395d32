"""A transport with other options than those that all cases are run with: a few cases, and all in the long run."""

import pytest

A_FEW = {
    "test_a_message_of_any_length_arrives_whole",
    "test_a_worker_of_another_job_or_group_is_refused",
    "test_close_delivers_what_was_sent",
    "test_many_threads_send_at_once",
    "test_messages_arrive_once_and_in_order",
    "test_nothing_is_left_behind",
    "test_strangers_get_nothing",
    "test_who_waits_for_room_goes_on_when_there_is_some",
    "test_who_closes_is_lost_to_the_others_once",
}


def pytest_itemcollected(item: pytest.Item) -> None:
    """Of classes that say `short = "a few"` leave the other cases to the long run."""
    if getattr(getattr(item, "cls", None), "short", "") == "a few" and getattr(item, "originalname", "") not in A_FEW:
        item.add_marker(pytest.mark.deep)

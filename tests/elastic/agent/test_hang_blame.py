"""How long steps may take, and who is to blame when none comes: pure functions."""

import json
import math
from dataclasses import replace

import pytest

from resilin._base.flight_record import JOIN, Call, CallState
from resilin.elastic import records
from resilin.elastic.agent import watchdog
from resilin.elastic.hangs import blame, flight_analysis, stall_record
from resilin.elastic.hangs.stall_record import Stall, Standing
from resilin.elastic.hangs.step_time import BUSY_S, FIRST_IDLE_S, FIRST_S, FLOOR_S, KEPT, StepTime
from resilin.elastic.records import Node, Slot

# ------------------------------------------------------------------------------------------------ pace


def pace(*steps, fixed_s=0.0):
    made = StepTime(fixed_s)
    for step in steps:
        made.took(step)
    return made


def test_short_steps_leave_the_floor():
    assert pace(*[0.02] * 50).limits(begun=True).look == FLOOR_S


def test_long_steps_make_it_longer():
    assert pace(*[8.0] * 50).limits(begun=True).look == 80.0


def test_one_outlier_does_not_change_what_is_usual_but_may_come_again():
    limits = pace(*[0.1] * 99, 40.0).limits(begun=True)
    assert pace(*[0.1] * 99, 40.0).usual_s == pytest.approx(0.1)
    assert limits.look == 80.0, "a checkpoint of 40 s was no hang, and the next one is none"


def test_a_pause_is_forgotten_in_the_end():
    assert pace(40.0, *[0.1] * KEPT).limits(begun=True).look == FLOOR_S


def test_steps_that_vary_have_more_room():
    calm, varied = pace(*[2.0] * 40), pace(*[1.0, 2.0, 3.0] * 40)
    assert varied.limits(begun=True).look > calm.limits(begun=True).look


def test_who_computes_has_longer_than_who_does_nothing():
    limits = pace(*[0.1] * 9).limits(begun=True)
    assert (limits.idle, limits.busy) == (FLOOR_S, BUSY_S)
    assert pace(*[100.0] * 9).limits(begun=True).busy == 1000.0, "but never less than steps of that length need"


def test_before_its_first_step_nothing_but_a_worker_that_is_stopped_or_sleeps_for_minutes_is_a_hang():
    for made in (pace(), pace(*[0.1] * 9), pace(fixed_s=3.0)):
        limits = made.limits(begun=False)
        assert (limits.look, limits.idle, limits.busy) == (FIRST_S, FIRST_IDLE_S, math.inf)


def test_a_limit_that_was_chosen_counts_for_all():
    limits = pace(*[8.0] * 50, fixed_s=3.0).limits(begun=True)
    assert (limits.look, limits.idle, limits.busy) == (3.0, 3.0, 3.0)


# ----------------------------------------------------------------------------------------------- blame


def call(rank, sequence, state=CallState.RUNNING, *, group="world", size=3, key=1, what="all_reduce", root=-1):
    return Call(
        state=state, group=group, key=key, generation=1, rank=rank, size=size, sequence=sequence, what=what, root=root,
        dtype="float32", shape=(8,), op="SUM" if what == "all_reduce" else "", line="", made=sequence + 2.0,
        started=0.0, ended=0.0,
    )  # fmt: skip


def joined(rank, **options):
    return call(rank, -1, CallState.DONE, what=JOIN, **options)


def stands(rank, *calls, doing="idle", pause="", at="train.py:3 in step"):
    return Standing(rank=rank, pid=100 + rank, doing=doing, at=at, pause=pause, calls=stall_record.compact(calls))


def waits(rank, sequence, **options):
    return stands(rank, joined(rank), call(rank, sequence - 1, CallState.DONE), call(rank, sequence), **options)


def judge(standings):
    """Of a world in which all are heard of."""
    return blame.judge(standings, len(standings))


def outside(rank, last, **options):
    return stands(rank, joined(rank), call(rank, last, CallState.DONE), **options)


def made(count, state=CallState.DONE, **options):
    return [replace(call(0, number, state, **options), ended=0.5 * number) for number in range(count)]


def test_ten_collectives_that_are_alike_are_steps_and_their_gaps_what_they_take():
    assert flight_analysis.gaps(made(10)) == (0.5,) * 9
    assert flight_analysis.gaps([*made(10), call(0, 10)]) == (0.5,) * 9, "one that runs has no end"
    assert flight_analysis.gaps([*made(9), *made(9, group="other"), *made(99, CallState.RUNNING)]) == ()
    for what in ("broadcast", "all_gather"):
        assert flight_analysis.gaps([*made(99, what=what), *made(9)]) == (), "a program may begin with those"
    assert flight_analysis.gaps([]) == ()


def test_who_is_missing_from_a_collective_is_to_blame():
    verdict = judge([waits(0, 7), outside(1, 6), waits(2, 7)])
    assert verdict.ranks == (1,)
    assert verdict.complaint(outside(1, 6)) == (
        "it is blocked at train.py:3 in step; ranks 0, 2 wait in all_reduce #7 float32[8] SUM of group 'world'"
    )


def test_what_each_rank_does_is_told_with_whom_it_waits_for():
    standings = [
        waits(0, 7),
        outside(1, 6, at="train.py:9 in load"),
        waits(2, 7),
        outside(3, 6, doing="busy", at=""),
        outside(4, 6, doing="stopped"),
        outside(5, 6, pause="evaluation"),
    ]
    told = blame.doings([replace(who, calls=stall_record.compact(sized(who, 6))) for who in standings])
    assert told == (
        "ranks 0, 2 in all_reduce #7 float32[8] SUM of group 'world' for ranks 1, 3, 4, 5 (train.py:3 in step), "
        "rank 1 blocked at train.py:9 in load, rank 3 busy, rank 4 stopped (SIGSTOP), "
        "rank 5 in an announced pause (evaluation)"
    )


def sized(who, size):
    return [replace(one, size=size) for one in who.flight().calls]


def test_a_complaint_tells_what_the_ranks_do_that_neither_wait_nor_are_waited_for_most():
    standings = [waits(0, 7), outside(1, 6), outside(2, 6, doing="busy", at="eval.py:5 in score")]
    assert judge(standings).reason == (
        "rank 0 waits in all_reduce #7 float32[8] SUM of group 'world', rank 2 busy at eval.py:5 in score"
    )


def test_many_ranks_that_do_different_things_are_told_in_part():
    told = blame.doings([outside(rank, 6, at=f"train.py:{rank} in step") for rank in range(20)])
    assert told.startswith("rank 0 blocked at train.py:0 in step, rank 1 ")
    assert told.endswith("rank 7 blocked at train.py:7 in step, 12 more elsewhere")


def test_who_was_stopped_inside_the_collective_of_all_is_to_blame():
    verdict = judge([waits(0, 7), waits(1, 7), waits(2, 7, doing="stopped")])
    assert verdict.ranks == (2,)
    assert verdict.reason.startswith("ranks 0, 1 wait in all_reduce #7")


def test_of_two_that_are_missing_the_one_that_does_nothing_is_to_blame():
    standings = [waits(0, 7), outside(1, 6, doing="busy"), outside(2, 6)]
    assert judge(standings).ranks == (2,)


def test_when_most_are_still_on_their_way_nobody_is_to_blame():
    verdict = judge([waits(0, 7), outside(1, 6, doing="busy"), outside(2, 6, doing="busy")])
    assert verdict.ranks == ()
    assert verdict.reason == "ranks 1, 2 are all still on their way to rank 0"


def test_a_chain_leads_to_the_one_that_waits_for_nobody():
    """Rank 0 waits for rank 1, which waits in a group of 1 and 2 for rank 2."""
    pair = {"group": "pair", "size": 2, "key": 2}
    standings = [
        stands(0, joined(0), call(0, 0, size=2), at=""),
        stands(1, joined(1), joined(0, **pair), call(0, 0, **pair)),
        stands(2, joined(1, **pair)),
    ]
    verdict = judge(standings)
    assert verdict.ranks == (2,), "rank 1 of the group 'pair' is rank 2 of the job"


def test_of_ranks_that_wait_for_one_another_the_one_most_wait_for_is_to_blame():
    pair = {"group": "pair", "size": 2, "key": 2}
    standings = [
        stands(0, joined(0), call(0, 0), joined(0, **pair)),
        stands(1, joined(1), joined(1, **pair), call(1, 0, **pair, what="barrier")),
        stands(2, joined(2), call(2, 0)),
    ]
    verdict = judge(standings)
    assert verdict.ranks == (1,)
    assert verdict.reason.startswith("a deadlock, each waits for the next: ")


def test_who_receives_from_one_that_does_not_send_waits_for_it():
    standings = [
        stands(0, joined(0, size=2), call(0, -1, what="recv", root=1, size=2)),
        stands(1, joined(1, size=2), call(1, 0, CallState.DONE, size=2)),
    ]
    assert judge(standings).ranks == (1,)


def test_all_inside_the_same_collective_is_nobodys_fault():
    verdict = judge([waits(0, 7), waits(1, 7), waits(2, 7)])
    assert verdict.ranks == ()
    assert verdict.reason.startswith(
        "all ranks are in the same collective, so none waits for another: ranks 0, 1, 2 wait in all_reduce #7"
    )
    assert "look at the links between their hosts" in verdict.reason


def test_ranks_in_a_collective_of_their_own_group_say_nothing_of_those_outside():
    pair = {"group": "pair", "size": 2, "key": 2}
    standings = [stands(rank, joined(rank, **pair), call(rank, 7, **pair)) for rank in (0, 1)]
    verdict = judge([*standings, stands(2)])
    assert verdict.ranks == ()
    assert verdict.reason.startswith("all that are in a collective are in the same one: ranks 0, 1 wait in")


@pytest.mark.parametrize("doing", ["busy", "idle"])
def test_when_no_rank_waits_nobody_is_to_blame(doing):
    assert judge([outside(rank, 6, doing=doing) for rank in range(3)]).ranks == ()


def test_the_only_worker_is_to_blame_for_its_own_silence():
    assert judge([outside(0, 6)]).ranks == (0,)


@pytest.mark.parametrize("standing", [outside(0, 6), waits(0, 7)])
def test_the_only_worker_that_is_heard_of_is_not_to_blame(standing):
    """The other one's node was lost, or the store is away: this one waits for the next world, and holds the state."""
    verdict = blame.judge([standing], 2)
    assert verdict.ranks == ()
    assert verdict.reason.startswith("nothing is heard of rank 1, so nobody can be named")


def test_who_is_stopped_or_waited_for_is_to_blame_though_not_all_are_heard_of():
    assert blame.judge([waits(0, 7), waits(1, 7, doing="stopped")], 3).ranks == (1,)
    assert blame.judge([waits(0, 7), outside(1, 6)], 3).ranks == (1,)


def test_a_pause_or_a_debugger_excuses_all_but_the_stopped():
    for excuse in ({"pause": "evaluation"}, {"doing": "traced"}):
        assert judge([waits(0, 7), outside(1, 6, **excuse)]).ranks == ()
    assert judge([outside(0, 6, pause="evaluation"), outside(1, 6, doing="stopped")]).ranks == (1,)


def test_where_a_rank_stands_fits_in_a_record_and_comes_back_from_it():
    many = [joined(1), *(call(1, n, CallState.DONE) for n in range(500)), call(1, 500), call(1, -1, CallState.QUEUED)]
    stall = Stall(generation=3, round=1, silent_s=7.0, workers=(stands(1, *many), stands(2, doing="stopped")))
    node = Node(id="a", host="h", address="h", master_port=1, slots=(Slot(index=0),), stall=stall)
    data = records.to_bytes(node)
    assert records.node("nodes/a", data) == node
    assert len(data) < 2000
    assert judge([waits(0, 500), *stall.workers[:1]]).ranks == ()


# ------------------------------------------------------------------------- what of the records is told


def test_whoever_is_missing_from_a_sum_along_a_tree_is_to_blame():
    """It has no root: the number of its shards may be any."""
    tree = {"what": "tree_all_reduce", "shards": 4, "op": ""}
    standings = [
        stands(0, joined(0, size=2), replace(call(0, 7, size=2), **tree)),
        stands(1, joined(1, size=2), replace(call(1, 6, CallState.DONE, size=2), **tree)),
    ]
    verdict = judge(standings)
    assert verdict.ranks == (1,)
    assert "rank 0 waits in tree_all_reduce #7 float32[8] of 4 shards of group 'world'" in verdict.reason


def test_sums_along_trees_are_steps_too():
    assert len(flight_analysis.gaps(made(10, what="tree_all_reduce"))) == 9
    assert len(flight_analysis.gaps(made(10, what="all_to_all"))) == 9, "sharded modules in fixed shards make these"


def test_who_has_not_come_out_of_what_the_others_have_finished_is_to_blame():
    standings = [waits(0, 7), stands(1, joined(1), call(1, 5, CallState.DONE), call(1, 6)), waits(2, 7)]
    assert judge(standings).ranks == (1,)
    assert "ranks 0, 2 wait in all_reduce #7" in judge(standings).reason


def test_a_call_that_runs_is_told_whatever_waits_for_its_turn_behind_it():
    """As the buckets of a backward do."""
    queued = [call(0, -1, CallState.QUEUED) for _ in range(9)]
    standings = [stands(0, joined(0), call(0, 7), *queued), outside(1, 6), waits(2, 7)]
    assert judge(standings).ranks == (1,)


def test_who_is_in_many_groups_is_found_missing_from_the_one_that_it_used_first():
    others = [
        call(1, number, CallState.DONE, group=f"part{part}", key=10 + part) for part in range(9) for number in range(3)
    ]
    late = [replace(each, made=each.made + 50.0) for each in others]
    standings = [waits(0, 7), stands(1, joined(1), call(1, 6, CallState.DONE), *late), waits(2, 7)]
    assert judge(standings).ranks == (1,)


def test_who_was_last_in_a_group_longer_ago_than_its_recorder_remembers_is_found_missing():
    pair = {"group": "pair", "size": 2, "key": 2}
    standings = [waits(0, 7, doing="idle"), stands(1, call(1, 900, CallState.DONE, **pair)), waits(2, 7)]
    assert judge(standings).ranks == (1,)


def test_of_whom_the_recorder_cannot_be_read_nobody_knows_whom_it_waits_for():
    standings = [waits(0, 7), replace(stands(1), unread="x.flight: another version of resilin wrote it"), waits(2, 7)]
    verdict = judge(standings)
    assert verdict.ranks == ()
    assert verdict.reason.endswith("of rank 1 its calls are not known (x.flight: another version of resilin wrote it)")


def test_a_group_that_was_made_anew_under_its_name_counts_from_its_beginning():
    standings = [
        stands(
            rank,
            *(call(rank, number, CallState.DONE, size=2) for number in range(40)),
            replace(joined(rank, size=2), made=99.0),
            *(replace(each, made=100.0) for each in new),
        )
        for rank, new in enumerate([[call(0, 0, size=2)], []])
    ]
    assert judge(standings).ranks == (1,)


def test_of_two_groups_of_one_name_and_generation_the_one_that_was_used_last_counts():
    old = {"key": 1, "size": 2}
    new = {"key": 2, "size": 2}
    standings = [
        stands(rank, call(rank, 90, CallState.DONE, **old), *(replace(each, made=200.0) for each in mine))
        for rank, mine in enumerate([(joined(0, **new), call(0, 1, **new)), (call(1, 0, CallState.DONE, **new),)])
    ]
    assert judge(standings).ranks == (1,)


def test_who_receives_from_any_rank_waits_for_all_others():
    standings = [
        stands(0, joined(0, size=2), call(0, -1, what="recv", size=2)),
        stands(1, joined(1, size=2), call(1, 0, CallState.DONE, size=2)),
    ]
    assert judge(standings).ranks == (1,)


def test_who_is_inside_the_collective_of_all_and_has_told_the_others_nothing_of_it_is_to_blame():
    inside = [replace(call(rank, 7), told=rank != 1) for rank in range(3)]
    standings = [stands(rank, joined(rank), each) for rank, each in enumerate(inside)]
    assert judge(standings).ranks == (1,)
    assert "ranks 0, 2 wait in all_reduce #7" in judge(standings).reason


@pytest.mark.parametrize("text", ["x" * 999, "ü" * 999, "\U0001f600" * 999, "\n" * 999, "", "short"])
def test_stacks_that_are_set_aside_fit_into_their_share_as_json(text):
    kept = watchdog._fitting(text, 100)
    assert len(json.dumps(kept)) <= 100
    assert text.startswith(kept)
    assert kept == text or len(json.dumps(kept)) > 80


def test_where_all_are_inside_the_same_collective_the_one_that_has_gone_from_there_into_other_code_is_to_blame():
    standings = [waits(0, 7), replace(waits(1, 7), strays=True), waits(2, 7)]
    assert judge(standings).ranks == (1,)
    assert judge(standings).reason.startswith("ranks 0, 2 wait in all_reduce #7")
    everybody = [replace(who, strays=True) for who in standings]
    assert judge(everybody).ranks == (), "then nobody is left that waits for it"


def test_who_has_not_taken_up_the_world_that_others_form_is_to_blame_and_before_all_one_that_does_nothing():
    late, busy = replace(outside(1, 4), absent=3), replace(outside(2, 4, doing="busy"), absent=3)
    verdict = judge([stands(0, joined(0)), late, busy])
    assert verdict.ranks == (1,)
    assert verdict.reason == "rank 0 waits for it in generation 3, which it has not taken up"
    assert judge([stands(0, joined(0)), waits(1, 0), busy]).ranks == (2,), "one that computes may be named, too"
    assert judge([stands(0), replace(late, doing="stopped"), busy]).reason.startswith("rank 0 waits for it in gen")
    assert judge([late, busy]).ranks == (), "nobody forms it: none waits for another there"


def test_of_those_late_in_a_world_that_a_newcomer_forms_only_the_one_is_to_blame_that_the_others_wait_for():
    """Whoever waits in the old world for another one cannot leave it; it may be the only one that has the state."""

    def late(who, size=2):
        return replace(who, absent=2, calls=stall_record.compact(sized(who, size)))

    holder, hung = late(waits(0, 7)), late(outside(1, 6))
    newcomer = stands(2)
    verdict = judge([holder, hung, newcomer])
    assert verdict.ranks == (1,)
    assert verdict.reason.startswith("rank 0 waits in all_reduce #7")
    assert verdict.reason.endswith("; rank 2 waits for it in generation 2, which it has not taken up")
    assert judge([holder, replace(hung, doing="busy"), newcomer]).ranks == (1,), "though the holder does nothing"
    assert judge([holder, late(waits(1, 7)), newcomer]).ranks == (), "both are where they should be"
    assert judge([late(waits(0, 7), size=3), newcomer]).ranks == (0,), "others have left that world"

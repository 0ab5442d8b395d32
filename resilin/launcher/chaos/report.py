"""What `resilin chaos` says of one run."""

from __future__ import annotations

from resilin.elastic.chaos.judge import Attribution, Judgement, Run


def lines(found: Judgement) -> list[str]:
    """The judgement for people."""
    verdict = "WRONG" if not found.ok else "same result" if found.disturbed else "NOT DISTURBED: no fault came about"
    wrong = (
        (not found.recovered, f"not brought to its end: exit codes {found.run.codes}"),
        (found.same is False, "workers ended with another fingerprint"),
        (found.counted is False, f"ledger: {found.run.counted}"),
    )
    seed = found.run.schedule.seed
    name = "the schedule" if seed is None else f"seed {seed}"
    head = f"{name}: {verdict} after {found.run.seconds:.1f} s"
    result = [head, *(f"  {text}" for is_so, text in wrong if is_so)]
    if not found.recovered:
        result += _last_words(found.run)
    result += [f"  ledger: {line} (left out)" for line in found.run.unreadable]
    happened = {one.fault for one in found.run.fired}
    told = {one.fired.fault: one for one in found.attributions}
    for number, fault in enumerate(found.run.schedule.faults):
        one = told.get(number)
        if number not in happened:
            said = "did not come about"
        elif one is None:
            said = "done"
        else:
            said = _named(one)
        result.append(f"  {fault}: {said}")
    return result


def _named(one: Attribution) -> str:
    if one.rank_named and one.cause_named:
        return "named"
    if one.timed_out:
        return f"NOT NAMED, only its group's timeout has ended it: {one.line}"
    return f"NOT NAMED: {one.line or 'no line says so'}"


def _last_words(run: Run) -> list[str]:
    """What each node that did not end well said last."""
    result = []
    for node, (code, said) in enumerate(zip(run.codes, run.said, strict=True)):
        words = [line for line in said.splitlines() if line.startswith("elastic-run: ")]
        if code != 0 and words:
            result.append(f"  node {node}: {words[-1]}")
    return result

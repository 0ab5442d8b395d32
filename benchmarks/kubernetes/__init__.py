"""An operator, its API server and kubelets on this machine: how long jobs wait for them, and what they cost."""

from __future__ import annotations

from benchmarks import harness
from benchmarks.harness import Options, Report, Row
from benchmarks.kubernetes import many_jobs, training

METHOD = """The test API server of `resilin.testing.kube` and the operator (`python -m resilin.operator`), all on this
machine; pods are processes in network namespaces of their own, images are there already. *Scale, deletion, drain*: one
job trains the model of `recovery`; {rounds} rounds. Scale: from the write of `replicas` to the end of the first step
that four workers did, the start of both agents included. Its parts: the operator has made both pods; the kubelets have
started both processes; all four workers are in one world; the step. Pause of survivors: the longest time without a
commit of any survivor from the request (a deletion; a cordon and an eviction) to the fifth step in the smaller world,
less a median step. *64 pods*: from the answer to the job's creation to the last pod, {creations} jobs. *500 jobs*:
{jobs} jobs of 4 pods, which are ready without running; memory of the operator's process; its processor time for
{changes} changes of `replicas` by one, all that follows included; writes of another process over {resyncs} looks at
everything."""


def benchmark(options: Options) -> Report:
    """The training job first, then pods without programs."""
    rounds, creations = (2, 2) if options.quick else (20, 20)
    jobs, changes, resyncs = (20, 5, 2) if options.quick else (500, 100, 20)
    with harness.progress("a job of real agents"):
        trained = training.measure(rounds)
    with harness.progress("64 pods"):
        created = many_jobs.measure_creation(creations)
    with harness.progress(f"{jobs} jobs"):
        load = many_jobs.measure_load(jobs, changes, resyncs)
    rows = [
        *_rows("scale 2 to 4: to the first step of four", trained.scale_s),
        *_parts(trained),
        *_rows("a pod is deleted: pause of survivors", trained.deletion_s),
        *_rows("a node is drained: pause of survivors", trained.drain_s),
        Row(what="steps that are done twice when a pod leaves, at most", unit="steps", ours=trained.most_repeated),
        *_rows("64 pods of a job created", created),
        Row(what=f"{jobs} jobs of 4 pods: memory of the operator", unit="MB", ours=load.memory_mb),
        Row(what="processor time for a change of a job's size", unit="ms", ours=load.change_s * 1e3),
        Row(what=f"API writes over {resyncs} forced resyncs", unit="writes", ours=load.writes),
    ]
    return Report(
        name="kubernetes",
        question="Jobs on Kubernetes: how long do they wait for the operator, and what does it cost?",
        method=METHOD.format(rounds=rounds, creations=creations, jobs=jobs, changes=changes, resyncs=resyncs),
        rows=rows,
        data={"training": vars(trained), "creation": created, "load": vars(load)},
    )


def _parts(trained: training.Trained) -> list[Row]:
    columns = zip(*trained.parts_s, strict=True)
    return [
        Row(
            what=f"... of it: {name}, median", unit="ms", ours=harness.percentile(samples, 50) * 1e3,
            spread=harness.spread(samples, 1e3),
        )
        for name, samples in zip(training.PARTS, columns, strict=True)
    ]  # fmt: skip


def _rows(what: str, samples: list[float]) -> list[Row]:
    return [
        Row(
            what=f"{what}, {name}", unit="ms", ours=harness.percentile(samples, percent) * 1e3,
            spread=harness.spread(samples, 1e3),
        )
        for name, percent in (("median", 50), ("p95", 95))
    ]  # fmt: skip

"""One operator in a cluster in memory, over a random history: late, lost, repeated and reordered events, crashes."""

from __future__ import annotations

from cluster_model import JOB, KEY, Cluster, Crash, job_manifest, steps

from resilin.errors import ClusterError
from resilin.operator import names
from resilin.operator.cache import SURROUNDINGS, Cache
from resilin.operator.engine import Engine
from resilin.operator.metrics import Metrics
from resilin.operator.observed import WorkerFault, WorldView

WATCHED = (names.KIND, "Pod", "Node", *sorted(SURROUNDINGS))
_MOST_TURNS = 400


class Operator:
    """A process of the operator, as far as it decides."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.cache = Cache()
        self.engine = Engine(cluster, self.cache, Metrics(), cluster.time)
        self._at = {kind: 0 for kind in WATCHED}  # how many events of a kind were delivered
        self.dirty: set[tuple[str, str]] = set()
        self.due: float | None = None
        for kind in WATCHED:
            self.list_again(kind)

    def list_again(self, kind: str) -> None:
        """What a watch does when it has lost its place."""
        self._at[kind] = len(self.cluster.events.get(kind, ()))
        items = [raw for raw in self.cluster.of(kind) if kind in (names.KIND, "Node") or _is_ours(raw)]
        if kind == "Node":
            for raw in items:
                self.take(kind, "MODIFIED", raw)
        else:
            self.dirty.update(self.cache.replace(kind, items, self.cluster.version))

    def deliver(self) -> None:
        """Some of what has happened, seldom in order."""
        draw = self.cluster.random
        kind = draw.choice(WATCHED)
        events = self.cluster.events.get(kind, [])
        at = self._at[kind]
        batch = events[at : at + draw.randint(1, 6)]
        self._at[kind] += len(batch)
        luck = draw.random()
        if luck < 0.1:
            batch = batch + batch[-1:] + events[max(0, at - 2) : at]  # repeated, and old ones again
        elif luck < 0.2:
            draw.shuffle(batch)
        elif luck < 0.27 and batch:
            self.list_again(kind)  # 410: the place is lost, and with it some events
            return
        for event in batch:
            self.take(kind, event.type, event.object)

    def take(self, kind: str, event: str, raw: dict) -> None:
        if kind == "Node":
            name, changed = self.cache.put_node(raw)
            if changed:
                self.dirty.update(self.cache.on_node(name))
        elif kind == names.KIND or _is_ours(raw):
            key = self.cache.remove(kind, raw) if event == "DELETED" else self.cache.put(kind, raw)
            if key is not None:
                self.dirty.add(key)

    async def turn(self) -> bool:
        """One turn of the job if it wants one; whether it had one."""
        due = self.due is not None and self.cluster.time.now >= self.due
        if KEY not in self.dirty and not due:
            return False
        self.dirty.discard(KEY)
        self.due = None
        try:
            after_s = await self.engine.turn(KEY)
        except ClusterError:
            self.due = self.cluster.time.now + 0.05
            return True
        self.due = None if after_s is None else self.cluster.time.now + after_s
        return True

    def ask_agents(self) -> None:
        """An agent tells its world: its worker has died, and was replaced. Often it is told again."""
        pods = self.cache.ready_workers(KEY)
        if not pods:
            return
        cluster = self.cluster
        if cluster.random.random() < 0.7:
            cluster.worker_faults.append(
                WorkerFault(
                    number=len(cluster.worker_faults) + 1, rank=0, pod=pods[0].name, uid=pods[0].uid,
                    cause="SIGKILL", message="x",
                    time=cluster.time.now, lost_s=1.0,
                )
            )  # fmt: skip
            cluster.world += 1
        world = WorldView(
            told_by=pods[0].uid, generation=cluster.world, restarts=len(cluster.worker_faults),
            faults=tuple(cluster.worker_faults),
        )  # fmt: skip
        if self.cache.put_world(KEY, world):
            self.dirty.add(KEY)


def _is_ours(raw: dict) -> bool:
    return names.JOB in (raw["metadata"].get("labels") or {})


async def live_through(seed: int, length: int = 40) -> tuple[Cluster, Operator]:
    """Let a random history happen, then let everything come to rest."""
    cluster = Cluster(seed)
    draw = cluster.random
    for node in ("n0", "n1", "n2"):
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        cluster.add("Node", {"metadata": {"name": node}, "spec": {}, "status": {"conditions": [ready]}})
    policy = {"graceSeconds": 5, "backoffSeconds": 1, "nodeLostSeconds": 40, "forceDeleteLost": draw.random() < 0.2}
    cluster.add(names.KIND, job_manifest(replicas=draw.randint(1, 5), elasticPolicy=policy))
    operator = Operator(cluster)
    cluster.trouble.chance = draw.choice([0.0, 0.02, 0.1])
    for _ in range(length):
        luck = draw.random()
        try:
            if luck < 0.35:
                await operator.turn()
            elif luck < 0.6:
                operator.deliver()
            elif luck < 0.615:
                operator.dirty.add(KEY)
            elif luck < 0.62:
                operator.ask_agents()
            elif luck < 0.63:
                raise Crash
            else:
                weights, actions = zip(*steps(cluster), strict=True)
                draw.choices(actions, weights)[0]()
        except Crash:
            operator = Operator(cluster)
    await come_to_rest(cluster, operator)
    return cluster, operator


async def come_to_rest(cluster: Cluster, operator: Operator) -> None:
    """No more trouble: nodes are up, nothing is refused, every event arrives."""
    cluster.trouble.chance = 0.0
    cluster.quota = None
    for node in cluster.of("Node"):
        if node["status"]["conditions"][0]["status"] != "True":
            cluster.set_node(node["metadata"]["name"], True)
    for _ in range(_MOST_TURNS):
        for kind in WATCHED:
            operator.list_again(kind)
        before = cluster.version
        await operator.turn()
        cluster.kubelets(all_of_them=True)
        if cluster.job_has("Succeeded"):  # the programs of the other pods come to their end as well
            for pod in cluster.running():
                cluster.end_pod(pod, 0, "Completed")
        if cluster.version == before:
            if operator.due is None:
                return
            cluster.pass_time(max(0.0, operator.due - cluster.time.now) + 0.01)
    raise AssertionError(f"no rest after {_MOST_TURNS} turns; the last writes: {cluster.writes[-12:]}")


def job(cluster: Cluster) -> dict:
    """The job as the server has it."""
    return cluster.objects[names.KIND, JOB]

"""Learn to catch a falling ball: actors play, a learner improves the policy from what they send.

    elastic-run --standalone --nproc-per-node 3 examples/rpc_actor_learner.py

Rank 0 learns, all others play. The learner publishes its weights after each update: an actor that begins to play takes
the newest version, which it maps where both are on one host. The learner never waits for the slowest actor, but learns
from whoever has finished first.
"""

from __future__ import annotations

import argparse
import os
import queue
from typing import NamedTuple

import numpy as np

import resilin as torch
import resilin.distributed.rpc as rpc
from resilin import nn

COLUMNS, ROWS = 7, 8  # the ball falls one row in each step; a catch is worth 1, a miss -1
MOVES = 3  # left, stay, right


def made() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2 * COLUMNS - 1, 32), nn.Tanh(), nn.Linear(32, MOVES))


class Trajectories(NamedTuple):
    """What an actor has played: all steps of all games."""

    seen: torch.Tensor
    moves: torch.Tensor
    rewards: torch.Tensor
    """Of the game that the step belongs to."""
    caught: float


class Actor:
    """Plays games, many at once."""

    def __init__(self, seed: int) -> None:
        self.model = made()
        self.dice = np.random.default_rng(seed)
        self.policy = rpc.subscribe("policy", src="learner")

    def play(self, version: int, games: int) -> Trajectories:
        """Play with the newest weights, which are those of `version` or newer."""
        _, weights = self.policy.wait(version)
        self.model.load_state_dict(weights)
        ball, own = self.dice.integers(0, COLUMNS, (2, games))
        seen, moves = [], []
        for _ in range(ROWS):
            view = np.eye(2 * COLUMNS - 1, dtype=np.float32)[ball - own + COLUMNS - 1]
            with torch.no_grad():
                chances = torch.softmax(self.model(torch.from_numpy(view)), 1).numpy()
            move = (chances.cumsum(1) < self.dice.random((games, 1))).sum(1).clip(0, MOVES - 1)
            own = (own + move - 1).clip(0, COLUMNS - 1)
            seen.append(view)
            moves.append(move)
        rewards = np.where(ball == own, 1.0, -1.0).astype(np.float32)
        return Trajectories(
            torch.from_numpy(np.concatenate(seen)),
            torch.from_numpy(np.concatenate(moves)),
            torch.from_numpy(np.tile(rewards, ROWS)),
            float((ball == own).mean()),
        )


class Learner:
    """Improves the policy: moves of games that went better than others become likelier."""

    def __init__(self, actors: list[rpc.RRef[Actor]], lr: float) -> None:
        self.actors = actors
        self.model = made()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=lr)

    def learn(self, played: Trajectories) -> None:
        advantage = played.rewards - played.rewards.mean()
        chances = torch.log_softmax(self.model(played.seen), 1)
        taken = chances.gather(1, played.moves.unsqueeze(1)).squeeze(1)
        entropy = -(chances.exp() * chances).sum(1).mean()
        self.optimizer.zero_grad()
        (-(taken * advantage).mean() - 0.01 * entropy).backward()
        self.optimizer.step()

    def run(self, updates: int, games: int) -> float:
        """Return how many balls are caught at the end, of 1."""
        finished: queue.SimpleQueue[int] = queue.SimpleQueue()
        playing: dict[int, torch.futures.Future[Trajectories]] = {}
        caught: list[float] = []

        def begin(number: int) -> None:
            version = rpc.publish(self.model.state_dict(), name="policy").version
            playing[number] = self.actors[number].rpc_async().play(version, games)
            playing[number].add_done_callback(lambda _: finished.put(number))

        for number in range(len(self.actors)):
            begin(number)
        for update in range(updates):
            number = finished.get()
            played = playing.pop(number).wait()
            self.learn(played)
            caught.append(played.caught)
            if update % 50 == 49:
                print(f"update {update + 1}: caught {np.mean(caught[-20:]):.1%}", flush=True)
            begin(number)
        for last in playing.values():
            last.wait()
        return float(np.mean(caught[-20:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--games", type=int, default=64, help="of one actor, before it sends them")
    args = parser.parse_args()
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if world_size < 2:
        parser.error("one process learns, so at least one more is needed: --nproc-per-node 2")
    rpc.init_rpc("learner" if rank == 0 else f"actor{rank}", rank=rank, world_size=world_size)
    if rank == 0:
        actors = [rpc.remote(f"actor{number}", Actor, args=(number,)) for number in range(1, world_size)]
        share = Learner(actors, lr=0.02).run(args.updates, args.games)
        print(f"caught {share:.1%} of the last balls, with {len(actors)} actors", flush=True)
    rpc.shutdown()


if __name__ == "__main__":
    main()

"""REINFORCE in a world of its own: walk along a line to its right end; the loss is the number of steps it takes."""

import random
from collections import deque

import torch
import torch.nn as nn
import torch.optim as optim
from torch.distributions import Categorical


class Line:
    """Seven places; the walker starts in the middle and wants to the last one."""

    def reset(self):
        self.place, self.time = 3, 0
        return self._seen()

    def step(self, action):
        self.place = max(0, self.place + (1 if action == 1 else -1))
        self.time += 1
        done = self.place == 6 or self.time == 30
        return self._seen(), 1.0 if self.place == 6 else -0.1, done

    def _seen(self):
        return [float(place == self.place) for place in range(7)]


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1 = nn.Linear(7, 16)
        self.affine2 = nn.Linear(16, 2)
        self.saved_log_probs, self.rewards = [], []

    def forward(self, x):
        return torch.softmax(self.affine2(torch.relu(self.affine1(x))), dim=-1)


def select_action(policy, state):
    m = Categorical(policy(torch.tensor(state).float().unsqueeze(0)))
    action = m.sample()
    policy.saved_log_probs.append(m.log_prob(action))
    return action.item()


def finish_episode(policy, optimizer, gamma=0.95):
    returns, total = deque(), 0
    for reward in policy.rewards[::-1]:
        total = reward + gamma * total
        returns.appendleft(total)
    returns = torch.tensor(returns)
    returns = (returns - returns.mean()) / (returns.std() + 1e-6)
    losses = [-log_prob * value for log_prob, value in zip(policy.saved_log_probs, returns)]
    optimizer.zero_grad()
    torch.cat(losses).sum().backward()
    optimizer.step()
    policy.saved_log_probs, policy.rewards = [], []


if __name__ == "__main__":
    random.seed(0)
    torch.manual_seed(0)
    world, policy = Line(), Policy()
    optimizer = optim.Adam(policy.parameters(), lr=0.02)
    lengths = []
    for _ in range(120):
        state, done = world.reset(), False
        while not done:
            state, reward, done = world.step(select_action(policy, state))
            policy.rewards.append(reward)
        lengths.append(len(policy.rewards))
        finish_episode(policy, optimizer)
    print(f"loss {sum(lengths[:20]) / 20:.4f} -> {sum(lengths[-20:]) / 20:.4f}")

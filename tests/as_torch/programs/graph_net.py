"""A graph network without sparse tensors: messages go along edges by index_add and scatter; some nodes are labelled."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parameter import Parameter


class GraphConvolution(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = Parameter(torch.FloatTensor(inputs, outputs))
        self.bias = Parameter(torch.FloatTensor(outputs))
        bound = 1.0 / math.sqrt(outputs)
        self.weight.data.uniform_(-bound, bound)
        self.bias.data.uniform_(-bound, bound)

    def forward(self, x, edges, weights):
        support = torch.mm(x, self.weight)
        gathered = support[edges[1]] * weights.unsqueeze(1)
        return torch.zeros_like(support).index_add(0, edges[0], gathered) + self.bias


class Attention(nn.Module):
    """Neighbours weigh as a softmax over each node's edges says."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs, bias=False)
        self.score = nn.Linear(2 * outputs, 1, bias=False)

    def forward(self, x, edges):
        h = self.linear(x)
        scores = F.leaky_relu(self.score(torch.cat((h[edges[0]], h[edges[1]]), dim=1)).squeeze(1), 0.2)
        most = torch.full((len(x),), -math.inf).scatter_reduce(0, edges[0], scores, "amax", include_self=True)
        weights = torch.exp(scores - most[edges[0]])
        total = torch.zeros(len(x)).scatter_add(0, edges[0], weights)
        weights = weights / total[edges[0]]
        places = edges[0].unsqueeze(1).expand(-1, h.size(1))
        return torch.zeros_like(h).scatter_add(0, places, h[edges[1]] * weights.unsqueeze(1))


class Net(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.gc1 = GraphConvolution(features, 16)
        self.gat = Attention(16, 16)
        self.gc2 = GraphConvolution(16, 2)

    def forward(self, x, edges, weights):
        x = F.dropout(F.relu(self.gc1(x, edges, weights)), 0.2, training=self.training)
        x = F.elu(self.gat(x, edges))
        return F.log_softmax(self.gc2(x, edges, weights), dim=1)


def graph(count):
    """Two groups with more edges inside than between, weights that make each node's edges sum to one."""
    labels = (torch.arange(count) % 2).long()
    same = labels.unsqueeze(0) == labels.unsqueeze(1)
    joined = torch.rand(count, count) < torch.where(same, 0.15, 0.02)
    joined = joined | joined.t() | torch.eye(count, dtype=torch.bool)
    edges = joined.nonzero(as_tuple=False).t().contiguous()
    degree = torch.bincount(edges[0], minlength=count).float()
    return labels, edges, 1 / degree[edges[0]]


if __name__ == "__main__":
    torch.manual_seed(42)
    labels, edges, weights = graph(120)
    features = torch.eye(120)
    seen = torch.LongTensor(range(40))
    model = Net(120)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02, weight_decay=5e-4)
    losses = []
    for _ in range(40):
        model.train()
        optimizer.zero_grad()
        loss = F.nll_loss(model(features, edges, weights)[seen], labels[seen])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    preds = model(features, edges, weights)[40:].max(1)[1].type_as(labels)
    assert preds.eq(labels[40:]).double().mean().item() > 0.8
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")

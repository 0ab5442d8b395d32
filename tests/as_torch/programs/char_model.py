"""A model of characters: a recurrent cell, one step at a time, with clipped gradients, and text drawn from it."""

import torch
import torch.nn as nn

TEXT = "the quick brown fox jumps over the lazy dog. " * 4
LETTERS = sorted(set(TEXT))
CODES = {letter: code for code, letter in enumerate(LETTERS)}


class CharModel(nn.Module):
    def __init__(self, letters, hidden):
        super().__init__()
        self.hidden_size = hidden
        self.encoder = nn.Embedding(letters, hidden)
        self.cell = nn.GRUCell(hidden, hidden)
        self.decoder = nn.Linear(hidden, letters)

    def forward(self, letter, hidden):
        hidden = self.cell(self.encoder(letter), hidden)
        return self.decoder(hidden), hidden

    def init_hidden(self, batch):
        return torch.zeros(batch, self.hidden_size)


def train_step(model, optimizer, criterion, x, y):
    hidden = model.init_hidden(x.size(0))
    loss = 0
    optimizer.zero_grad()
    for t in range(x.size(1)):
        output, hidden = model(x[:, t], hidden)
        loss += criterion(output.view(x.size(0), -1), y[:, t])
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item() / x.size(1)


@torch.no_grad()
def generate(model, start, count, temperature=0.5):
    hidden, made = model.init_hidden(1), start
    for letter in start[:-1]:
        _, hidden = model(torch.tensor([CODES[letter]]), hidden)
    for _ in range(count):
        output, hidden = model(torch.tensor([CODES[made[-1]]]), hidden)
        weights = output.view(-1).div(temperature).exp()
        made += LETTERS[torch.multinomial(weights, 1)[0]]
    return made


if __name__ == "__main__":
    torch.manual_seed(1)
    model = CharModel(len(LETTERS), 48)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    criterion = nn.CrossEntropyLoss()
    text = torch.tensor([CODES[letter] for letter in TEXT], dtype=torch.long)
    losses = []
    for _ in range(40):
        starts = torch.randint(0, len(text) - 21, (16,))
        chunks = torch.stack([text[start : start + 21] for start in starts.tolist()])
        losses.append(train_step(model, optimizer, criterion, chunks[:, :-1], chunks[:, 1:]))
    assert len(generate(model, "th", 30)) == 32
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")

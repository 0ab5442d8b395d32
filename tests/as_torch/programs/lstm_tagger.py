"""A tagger of sequences of several lengths: packed into a bidirectional LSTM, padded again, padding left out."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader


def sequences(count):
    """Words of 20, and for each whether its neighbour to the right is the larger one."""
    made = []
    for length in torch.randint(3, 9, (count,)).tolist():
        words = torch.randint(1, 20, (length,))
        tags = torch.cat((words[1:] > words[:-1], torch.tensor([False]))).long()
        made.append((words, tags))
    return made


def collate(batch):
    batch = sorted(batch, key=lambda pair: len(pair[0]), reverse=True)
    lengths = [len(words) for words, _ in batch]
    words = pad_sequence([words for words, _ in batch], batch_first=True)
    return words, pad_sequence([tags for _, tags in batch], batch_first=True, padding_value=-100), lengths


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 16, padding_idx=0)
        self.lstm = nn.LSTM(16, 32, num_layers=2, batch_first=True, bidirectional=True, dropout=0.1)
        self.fc = nn.Linear(64, 2)

    def forward(self, words, lengths):
        packed = pack_padded_sequence(self.embed(words), lengths, batch_first=True)
        output, _ = self.lstm(packed)
        output, _ = pad_packed_sequence(output, batch_first=True)
        return self.fc(output)


if __name__ == "__main__":
    torch.manual_seed(0)
    loader = DataLoader(sequences(320), batch_size=32, shuffle=True, collate_fn=collate)
    model = Tagger()
    criterion = nn.CrossEntropyLoss(ignore_index=-100)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.005)
    losses = []
    for _ in range(5):
        for words, tags, lengths in loader:
            model.zero_grad()
            loss = criterion(model(words, lengths).transpose(1, 2), tags)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    print(f"loss {losses[0]:.4f} -> {sum(losses[-5:]) / 5:.4f}")

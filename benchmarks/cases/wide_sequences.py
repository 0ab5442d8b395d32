"""Models of numbers, tokens, graphs and sound for `models_wide`; `torch` is whichever library runs."""

from __future__ import annotations

from typing import Any

from benchmarks.cases.wide_parts import Wide, module, numbers, values

WORDS = 1000


def mlp(torch: Any) -> Any:
    """A classifier of numbers with batch norm."""
    nn, layers = torch.nn, []
    for before, after in ((256, 512), (512, 512), (512, 256)):
        layers += [nn.Linear(before, after), nn.BatchNorm1d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(256, 10))


def _rows(torch: Any, size: int) -> tuple[tuple[Any, ...], Any]:
    return (values(torch, (size, 256), 1000),), numbers(torch, (size,), 10, 1001)


def encoder(torch: Any) -> Any:
    """A. Vaswani et al., "Attention is all you need", 2017: its encoder, over padded texts."""
    nn, width = torch.nn, 128

    def forward(m: Any, word_BT: Any, padding_BT: Any) -> Any:
        x_BTD = m.layers(m.words(word_BT) + m.places, src_key_padding_mask=padding_BT)
        kept_BT1 = (~padding_BT).to(x_BTD.dtype)[:, :, None]
        return m.head((x_BTD * kept_BT1).sum(1) / kept_BT1.sum(1))

    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
    return module(
        torch, forward, words=nn.Embedding(WORDS, width), places=nn.Parameter(torch.zeros(64, width)),
        layers=nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), head=nn.Linear(width, 10),
    )  # fmt: skip


def _padded(torch: Any, size: int) -> tuple[tuple[Any, ...], Any]:
    length_B1 = 32 + (torch.arange(size) * 13 % 33)[:, None]
    return (numbers(torch, (size, 64), WORDS, 1000), torch.arange(64)[None] >= length_B1), numbers(
        torch, (size,), 10, 1001
    )


def gru(torch: Any) -> Any:
    """A language model of two layers."""
    nn = torch.nn
    return module(
        torch,
        lambda m, word_BT: m.head(m.layers(m.words(word_BT))[0]),
        words=nn.Embedding(WORDS, 128), layers=nn.GRU(128, 256, 2, batch_first=True), head=nn.Linear(256, WORDS),
    )  # fmt: skip


def _text(torch: Any, size: int) -> tuple[tuple[Any, ...], Any]:
    return (numbers(torch, (size, 32), WORDS, 1000),), numbers(torch, (size, 32), WORDS, 1001)


def graph(torch: Any) -> Any:
    """Messages along edges, summed or their maxima taken at the nodes by scatter; a class for each graph."""
    nn, width = torch.nn, 64

    def convolve(reduce: str) -> Any:
        def forward(m: Any, x_ND: Any, source_E: Any, into_E: Any) -> Any:
            place_ED = into_E[:, None].expand(-1, width)
            message_ED = m.message(x_ND[source_E]).relu()
            zeros_ND = torch.zeros(x_ND.shape[0], width)
            if reduce == "sum":
                gathered_ND = zeros_ND.scatter_add(0, place_ED, message_ED)
            else:
                gathered_ND = zeros_ND.scatter_reduce(0, place_ED, message_ED, reduce)
            return x_ND + m.update(torch.cat([x_ND, gathered_ND], 1)).relu()

        return module(torch, forward, message=nn.Linear(width, width), update=nn.Linear(2 * width, width))

    def forward(m: Any, x_ND: Any, source_E: Any, into_E: Any, graph_N: Any) -> Any:
        x_ND = m.first(x_ND)
        for layer in m.layers:
            x_ND = layer(x_ND, source_E, into_E)
        graphs = x_ND.shape[0] // 64
        return m.head(torch.zeros(graphs, width).index_add(0, graph_N, x_ND) / 64)

    layers = nn.ModuleList([convolve(reduce) for reduce in ("sum", "amax", "sum")])
    return module(torch, forward, first=nn.Linear(16, width), layers=layers, head=nn.Linear(width, 10))


def _graphs(torch: Any, size: int) -> tuple[tuple[Any, ...], Any]:
    """Each of 64 nodes and 256 edges."""
    graph_E = torch.arange(size).repeat_interleave(256) * 64
    ends = [numbers(torch, (size * 256,), 64, seed) + graph_E for seed in (1000, 1001)]
    inputs = (values(torch, (size * 64, 16), 1002), *ends, torch.arange(size).repeat_interleave(64))
    return inputs, numbers(torch, (size,), 10, 1003)


def recommender(torch: Any) -> Any:
    """Bags of what a user did in three tables, then an MLP (M. Naumov et al., "Deep learning recommendation", 2019)."""
    nn, width = torch.nn, 64

    def forward(m: Any, item_BL: Any, place_B: Any, number_BD: Any) -> Any:
        bags = [table(item_BL.reshape(-1), place_B) for table in m.tables]
        return m.head(torch.cat([*bags, m.numbers(number_BD)], 1))

    tables = [nn.EmbeddingBag(10_000, width, mode=mode) for mode in ("sum", "mean", "sum")]
    head = [nn.Linear(4 * width, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 2)]
    return module(
        torch, forward, tables=nn.ModuleList(tables), numbers=nn.Sequential(nn.Linear(16, width), nn.ReLU()),
        head=nn.Sequential(*head),
    )  # fmt: skip


def _visits(torch: Any, size: int) -> tuple[tuple[Any, ...], Any]:
    inputs = (numbers(torch, (size, 20), 10_000, 1000), torch.arange(0, size * 20, 20), values(torch, (size, 16), 1001))
    return inputs, numbers(torch, (size,), 2, 1002)


def wavenet(torch: Any) -> Any:
    """A. van den Oord et al., "WaveNet", 2016: two stacks of dilations 1 to 64, what comes next of 256 levels."""
    nn, functional, width = torch.nn, torch.nn.functional, 32

    def layer(dilation: int) -> Any:
        def forward(m: Any, x_BCT: Any) -> Any:
            filtered, gate = m.window(functional.pad(x_BCT, (dilation, 0))).chunk(2, 1)
            y_BCT = filtered.tanh() * gate.sigmoid()
            return x_BCT + m.on(y_BCT), m.skip(y_BCT)

        return module(
            torch, forward, window=nn.Conv1d(width, 2 * width, 2, dilation=dilation), on=nn.Conv1d(width, width, 1),
            skip=nn.Conv1d(width, 64, 1),
        )  # fmt: skip

    def forward(m: Any, level_BT: Any) -> Any:
        x_BCT, total = m.levels(level_BT).transpose(1, 2), 0.0
        for one in m.layers:
            x_BCT, skip = one(x_BCT)
            total = total + skip
        return m.head(total).transpose(1, 2)

    head = nn.Sequential(nn.ReLU(), nn.Conv1d(64, 64, 1), nn.ReLU(), nn.Conv1d(64, 256, 1))
    layers = nn.ModuleList([layer(2**i) for _ in range(2) for i in range(7)])
    return module(torch, forward, levels=nn.Embedding(256, width), layers=layers, head=head)


def _sound(torch: Any, size: int) -> tuple[tuple[Any, ...], Any]:
    return (numbers(torch, (size, 256), 256, 1000),), numbers(torch, (size, 256), 256, 1001)


def text_cnn(torch: Any) -> Any:
    """Y. Kim, "Convolutional neural networks for sentence classification", 2014."""
    nn = torch.nn

    def forward(m: Any, word_BT: Any) -> Any:
        x_BDT = m.words(word_BT).transpose(1, 2)
        return m.head(torch.cat([window(x_BDT).relu().amax(2) for window in m.windows], 1))

    windows = nn.ModuleList([nn.Conv1d(128, 100, size) for size in (3, 4, 5)])
    return module(torch, forward, words=nn.Embedding(WORDS, 128), windows=windows, head=nn.Linear(300, 10))


def _sentences(torch: Any, size: int) -> tuple[tuple[Any, ...], Any]:
    return (numbers(torch, (size, 64), WORDS, 1000),), numbers(torch, (size,), 10, 1001)


def translator(torch: Any) -> Any:
    """LSTMs that read and write a sentence, the second looking at all that the first has read."""
    nn = torch.nn

    def forward(m: Any, read_BS: Any, written_BT: Any) -> Any:
        memory_BSD, state = m.reader(m.read(read_BS))
        x_BTD, _ = m.writer(m.written(written_BT), state)
        weights_BTS = torch.bmm(x_BTD, memory_BSD.transpose(1, 2)).softmax(2)
        return m.head(torch.cat([x_BTD, torch.bmm(weights_BTS, memory_BSD)], 2).tanh())

    return module(
        torch, forward, read=nn.Embedding(WORDS, 128), written=nn.Embedding(WORDS, 128),
        reader=nn.LSTM(128, 128, batch_first=True), writer=nn.LSTM(128, 128, batch_first=True),
        head=nn.Linear(256, WORDS),
    )  # fmt: skip


def _pairs(torch: Any, size: int) -> tuple[tuple[Any, ...], Any]:
    inputs = tuple(numbers(torch, (size, 24), WORDS, seed) for seed in (1000, 1001))
    return inputs, numbers(torch, (size, 24), WORDS, 1002)


SEQUENCES: dict[str, Wide] = {
    "mlp": Wide(text="MLP with BatchNorm1d", build=mlp, batch=_rows),
    "encoder": Wide(text="transformer encoder, 64 tokens, padding masks", build=encoder, batch=_padded),
    "gru": Wide(text="GRU language model, 32 tokens", build=gru, batch=_text),
    "graph": Wide(text="graph net by scatter, 64 nodes", build=graph, batch=_graphs),
    "recommender": Wide(text="embedding-bag recommender", build=recommender, batch=_visits),
    "wavenet": Wide(text="WaveNet-like, 256 samples", build=wavenet, batch=_sound),
    "text_cnn": Wide(text="text CNN, 64 tokens", build=text_cnn, batch=_sentences),
    "translator": Wide(text="LSTM seq2seq with attention", build=translator, batch=_pairs),
}

"""Models, and runs of them with and without a pipeline, over the same micro-batches."""

import resilin
import resilin.distributed as dist
from resilin import nn, optim, pipeline
from resilin.core import rng
from resilin.nn import functional as F

SINGLE = ("GPipe", "1F1B")
MULTI = ("LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble")
V = ("ZBVZeroBubble", "DualPipeV")
SCHEDULES = (*SINGLE, *MULTI, *V)


class Block(nn.Module):
    """One layer of a GPT."""

    def __init__(self, width=8, heads=2):
        super().__init__()
        self.before = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, dropout=0.1, batch_first=True)
        self.after = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.2))

    def forward(self, x):
        y = self.before(x)
        x = x + self.attention(y, y, y, need_weights=False, is_causal=True, attn_mask=_mask(x.shape[1]))[0]
        return x + self.mlp(self.after(x))


def _mask(length):
    return resilin.ones(length, length, dtype=resilin.bool).triu(1)


class Embedded(nn.Module):
    """Tokens and their places."""

    def __init__(self, words=11, width=8, length=6):
        super().__init__()
        self.wte, self.wpe, self.drop = nn.Embedding(words, width), nn.Embedding(length, width), nn.Dropout(0.1)

    def forward(self, tokens):
        return self.drop(self.wte(tokens) + self.wpe(resilin.arange(tokens.shape[1])))


def gpt(layers=6):
    """A GPT as layers in a row; as many as can be cut into eight stages."""
    return nn.Sequential(
        Embedded(), *(Block() for _ in range(layers)), nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 11))
    )


def gpt_batch(samples=8):
    return resilin.randint(0, 11, (samples, 6)), resilin.randint(0, 11, (samples, 6))


def gpt_loss(output, target):
    return F.cross_entropy(output.reshape(-1, 11), target.reshape(-1))


def cnn():
    """Convolutions with batch norm and dropout, in eight layers."""
    layers = [nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())]
    layers += [
        nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.Dropout(0.2)) for _ in range(6)
    ]
    return nn.Sequential(*layers, nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)))


def cnn_batch(samples=16):
    return resilin.randn(samples, 3, 6, 6), resilin.randint(0, 5, (samples,))


MODELS = {"gpt": (gpt, gpt_batch, gpt_loss), "cnn": (cnn, cnn_batch, F.cross_entropy)}


def part(layers, index, count):
    """Stage `index` of `count`, with the names of the whole: a Sequential that begins elsewhere."""
    size, rest = divmod(len(layers), count)
    begin = index * size + min(index, rest)
    stage = nn.Sequential()
    for number in range(begin, begin + size + (index < rest)):
        stage.add_module(str(number), layers[number])
    return stage


def bits(tensor):
    return None if tensor is None else (tensor.detach().numpy().tobytes(), str(tensor.dtype), tuple(tensor.shape))


def snapshot(module):
    """Every weight, gradient and buffer of a module, in bits."""
    state = {name: bits(value) for name, value in module.state_dict().items()}
    return state | {f"{name}.grad": bits(param.grad) for name, param in module.named_parameters()}


def unpipelined(name, microbatches, steps=2, scale=True):
    """The loop over micro-batches that pipelines must equal: losses and outputs, and what is left of the model."""
    make, batch, loss_fn = MODELS[name]
    resilin.manual_seed(5)
    model = make()
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses, outputs = [], []
    for step in range(steps):
        x, y = batch()
        optimizer.zero_grad()
        for number, (xs, ys) in enumerate(zip(x.tensor_split(microbatches), y.tensor_split(microbatches), strict=True)):
            with rng.keyed(step, number):
                output = model(xs)
                loss = loss_fn(output, ys)
            loss.backward()
            losses.append(bits(loss))
            outputs.append(bits(output))
        for param in model.parameters():
            if scale:
                param.grad /= microbatches
        if step < steps - 1:
            optimizer.step()
    return losses, outputs, snapshot(model)


def make_schedule(name, schedule, ranks, rank, microbatches, per_rank=None, mode="never", **kwargs):
    """This rank's schedule, of a model that is made from one seed everywhere; and its batches."""
    make, batch, loss_fn = MODELS[name]
    cls = pipeline.get_schedule_class(schedule)
    count = ranks * (per_rank or (1 if schedule in SINGLE else 2))
    resilin.manual_seed(5)
    layers = make()
    stages = [
        pipeline.PipelineStage(part(layers, index, count), index, count, "cpu", checkpoint=mode)
        for index in cls.stage_indices(rank, ranks, count)
    ]
    given = stages[0] if schedule in SINGLE else stages
    return cls(given, microbatches, loss_fn=loss_fn, **kwargs), stages, batch


def pipelined(rank, name, schedule, microbatches, steps=2, mode="never", per_rank=None, scale=True):
    """One rank of the same in a pipeline."""
    ranks = dist.get_world_size()
    plan, stages, batch = make_schedule(name, schedule, ranks, rank, microbatches, per_rank, mode, scale_grads=scale)
    params = [param for stage in stages for param in stage.submod.parameters()]
    optimizer = optim.SGD(params, lr=0.1, momentum=0.9)
    losses, outputs = [], []
    for step in range(steps):
        x, y = batch()
        optimizer.zero_grad()
        found = []
        first, last = stages[0].is_first, any(stage.is_last for stage in stages)
        output = plan.step(*([x] if first else []), target=y if last else None, losses=found)
        losses += map(bits, found)
        if output is not None:
            outputs += map(bits, output.tensor_split(microbatches))
        if step < steps - 1:
            optimizer.step()
    state = {}
    for stage in stages:
        state |= snapshot(stage.submod)
    return losses, outputs, state


def joined(results):
    """What the ranks have, together."""
    losses, outputs, state = [], [], {}
    for each in results:
        losses += each[0]
        outputs += each[1]
        state |= each[2]
    return losses, outputs, state

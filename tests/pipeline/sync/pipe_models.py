"""Layers and runs that several tests of Pipe use."""

import resilin as torch
from resilin import nn
from resilin.core import rng


def placed(*layers, devices=None):
    """A Sequential whose layers are on sim:0, sim:1, ..., or on `devices`."""
    devices = devices or [f"sim:{i}" for i in range(len(layers))]
    return nn.Sequential(*(layer.to(device) for layer, device in zip(layers, devices, strict=True)))


def numbers(*shape, device="sim:0", requires_grad=False, seed=0):
    """Random values."""
    with rng.keyed(seed):
        return torch.randn(shape).to(device).requires_grad_(requires_grad)


def unpiped(layers, x, chunks):
    """The same layers, called for each micro-batch in turn in this thread, with the random numbers that Pipe uses."""
    n = rng.default_generator.offset
    outputs = []
    for i, part in enumerate(x.chunk(chunks)):
        with torch.keyed(n, i):
            for layer in layers:
                device = next((p.device for p in layer.parameters()), part.device)
                part = layer(part.to(device))
            outputs.append(part)
    return torch.cat(outputs)


def bits(tensors):
    """The bytes of each."""
    return [None if t is None else t.detach().cpu().numpy().tobytes() for t in tensors]


def gradients(module):
    """The bytes of each parameter's gradient."""
    return bits(p.grad for p in module.parameters())


def checkpoints(tensor):
    """How many recorded operations of a graph keep nothing, because a checkpoint brings it back: by their frames."""
    frames, seen, waiting = set(), set(), [tensor.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        frames |= {id(node.frame)} if getattr(node, "frame", None) is not None else set()
        waiting += [before for before, _ in node.next_functions]
    return len(frames)

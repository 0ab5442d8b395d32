"""Divergences between distributions: `kl_divergence`, and `register_kl` for those of one's own."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from resilin.core.tensor import Tensor
from resilin.distributions.distribution import Distribution

__all__ = ["kl_divergence", "register_kl"]

Rule = Callable[[Any, Any], Tensor]
Pair = tuple[type[Distribution], type[Distribution]]

_KL_REGISTRY: dict[Pair, Rule] = {}
_KL_MEMOIZE: dict[Pair, Rule | None] = {}  # what a pair of classes leads to


def register_kl(type_p: type[Distribution], type_q: type[Distribution]) -> Callable[[Rule], Rule]:
    """Decorate a function `(p, q)` that gives KL(p || q) for two classes and those derived of them.

    The nearest rule counts. Where one is nearer for p and another for q, `kl_divergence` warns; register one for both.
    Raises: TypeError for what is no class of distributions.
    """
    for name, kind in (("type_p", type_p), ("type_q", type_q)):
        if not (isinstance(kind, type) and issubclass(kind, Distribution)):
            raise TypeError(f"Expected {name} to be a Distribution subclass but got {kind}")

    def decorator(rule: Rule) -> Rule:
        _KL_REGISTRY[type_p, type_q] = rule
        _KL_MEMOIZE.clear()
        return rule

    return decorator


def kl_divergence(p: Distribution, q: Distribution) -> Tensor:
    """KL(p || q), the mean of log p(x) - log q(x) under p, of `batch_shape`.

    Raises: NotImplementedError where no rule is registered for the two classes.
    """
    pair = type(p), type(q)
    if pair not in _KL_MEMOIZE:
        _KL_MEMOIZE[pair] = _dispatch_kl(*pair)
    rule = _KL_MEMOIZE[pair]
    if rule is None:
        raise NotImplementedError(
            f"No KL(p || q) is implemented for p type {type(p).__name__} and q type {type(q).__name__}"
        )
    return rule(p, q)


def _dispatch_kl(type_p: type[Distribution], type_q: type[Distribution]) -> Rule | None:
    found = [pair for pair in _KL_REGISTRY if issubclass(type_p, pair[0]) and issubclass(type_q, pair[1])]
    if not found:
        return None

    def distance(pair: Pair) -> tuple[int, int]:
        return type_p.__mro__.index(pair[0]), type_q.__mro__.index(pair[1])

    by_p = min(found, key=distance)
    by_q = min(found, key=lambda pair: distance(pair)[::-1])
    if _KL_REGISTRY[by_p] is not _KL_REGISTRY[by_q]:
        warnings.warn(
            f"Ambiguous kl_divergence({type_p.__name__}, {type_q.__name__}). "
            f"Please register_kl({by_p[0].__name__}, {by_q[1].__name__})",
            RuntimeWarning,
            stacklevel=3,
        )
    return _KL_REGISTRY[by_p]

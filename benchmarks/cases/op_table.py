"""Times one operation, or one form of it, at a time: expressions over tensors of about 1e3, 1e5 and 1e7 elements.

An expression is the same text for both libraries. N rows, C columns of a matrix; B, C, H, W of images.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from benchmarks.library import Library

SIZES = (1_000, 100_000, 10_000_000)

# Of tensors of n elements: x, y, z normal; p positive; u within (0, 1); b true or false; k places; one of one element.
FLAT = """
x + y|x - y|x * y|x / p|x + 1|1 - x|x * 2.5|2.0 / p|-x|x.abs()|x.sign()|x ** 2|x ** 3|p ** 0.5|p ** y|2.0 ** x
p.sqrt()|p.rsqrt()|p.reciprocal()|x.square()|x.exp()|x.exp2()|x.expm1()|p.log()|p.log2()|p.log10()|p.log1p()|x.sin()
x.cos()|u.tan()|u.asin()|u.acos()|x.atan()|x.sinh()|x.cosh()|x.tanh()|x.asinh()|(p + 1).acosh()|u.atanh()|x.sigmoid()
u.logit()|x.erf()|x.erfc()|u.erfinv()|p.lgamma()|p.digamma()|x.floor()|x.ceil()|x.round()|x.trunc()|x.frac()
x.clamp(-1, 1)|x.clamp(min=0)|T.maximum(x, y)|T.minimum(x, y)|T.fmax(x, y)|T.atan2(x, y)|T.hypot(x, y)
T.copysign(x, y)|T.remainder(x, p)|T.fmod(x, p)|x // p|T.floor_divide(x, p)|T.logaddexp(x, y)|T.xlogy(p, p)
T.lerp(x, y, 0.3)|T.lerp(x, y, u)|T.addcmul(x, y, z, value=0.5)|T.addcdiv(x, y, p, value=0.5)|T.nan_to_num(x)
T.heaviside(x, y)|T.ldexp(x, one)|T.sinc(x)|T.special.i0(x)|T.special.ndtr(x)|T.special.log_ndtr(x)|T.special.entr(u)
T.special.xlog1py(x, u)|x == y|x < y|x >= 0|x != 0|T.isnan(x)|T.isfinite(x)|T.isclose(x, y)|T.equal(x, x)
T.allclose(x, x)|b & ~b|b.logical_not()|b ^ b|T.where(b, x, y)|T.where(b, x, 0.0)|x.masked_fill(b, 0.0)|x[b]
x.masked_select(b)|b.nonzero()|b.sum()|b.any()|b.all()|x.sum()|x.mean()|x.prod()|x.var()|x.std()|x.norm()|x.norm(1)
x.amax()|x.amin()|x.max()|x.min()|x.argmax()|x.argmin()|x.logsumexp(0)|x.median()|x.nansum()|T.dot(x, y)|T.dist(x, y)
x.aminmax()|x.count_nonzero()|x.cumsum(0)|x.cumprod(0)|x.cummax(0)|x.logcumsumexp(0)|x.diff()|T.trapezoid(x)
x.softmax(0)|x.log_softmax(0)|x.sort()|x.argsort()|x.topk(10)|x.kthvalue(3)|k.sort()|k.unique()|T.bincount(k % 1000)
x.sort(descending=True)|x.topk(n // 10)|x.unique()|x.unique(return_inverse=True)
(k % 100).unique(return_counts=True)|(k % 100).unique_consecutive()|k.int().topk(10)
T.searchsorted(p.cumsum(0), x)|x.masked_scatter(b, y)|x.take_along_dim(k, 0)
T.histc(x, 100)|T.searchsorted(edges, x)|T.bucketize(x, edges)|x[k]|x.index_select(0, k)|x.gather(0, k)|x.take(k)
x.scatter(0, k, y)|x.scatter_add(0, k, y)|x.index_add(0, k, y)|x.index_fill(0, k, 0.0)|x.index_copy(0, k, y)
T.zeros_like(x).index_put_((k,), y, accumulate=True)|x.flip(0)|x.roll(5)|x.clone()|x.to(T.float64)|x.to(T.float16)
x.to(T.bfloat16)|x.to(T.int64)|x.to(T.int32)|x.bool()|k.float()|x.half().float()|T.cat((x, y))|T.stack((x, y))
x.repeat(3)|x.repeat_interleave(2)|T.zeros(n)|T.ones(n)|T.full((n,), 3.0)|T.empty(n).fill_(1.0)|T.arange(n)
T.linspace(0, 1, n)|T.rand(n)|T.randn(n)|T.randint(0, 10, (n,))|T.randperm(n)|T.bernoulli(u)|T.empty(n).exponential_()
T.empty(n).normal_()|T.empty(n).uniform_()|F.dropout(x, 0.1)|F.relu(x)|F.gelu(x)|F.gelu(x, approximate='tanh')
F.silu(x)|F.leaky_relu(x)|F.elu(x)|F.selu(x)|F.celu(x)|F.softplus(x)|F.mish(x)|F.hardtanh(x)|F.hardsigmoid(x)
F.hardswish(x)|F.relu6(x)|F.logsigmoid(x)|F.softsign(x)|F.tanhshrink(x)|F.hardshrink(x)|F.softshrink(x)
F.threshold(x, 0.1, 0.0)|F.glu(x)|F.prelu(x, one)|F.mse_loss(x, y)|F.l1_loss(x, y)|F.smooth_l1_loss(x, y)
F.huber_loss(x, y)|F.binary_cross_entropy(u, p.clamp(max=1))|F.binary_cross_entropy_with_logits(x, u)|F.kl_div(x, u)
F.poisson_nll_loss(x, p)|F.gaussian_nll_loss(x, y, p)|F.soft_margin_loss(x, y.sign())|w.add_(x)|w.add_(x, alpha=0.1)
w.sub_(x)|w.mul_(0.99)|w.mul_(u)|w.div_(p)|w.copy_(x)|w.fill_(1.0)|w.zero_()|w.lerp_(x, 0.1)
w.addcmul_(x, y, value=0.1)|w.addcdiv_(x, p, value=0.1)|w.clamp_(-1, 1)|w.abs_()|w.neg_()|w.masked_fill_(b, 0.0)
w.relu_()|w.copy_(p).sqrt_()|w.mul_(0.9).add_(x, alpha=0.1)|w.index_fill_(0, k, 0.0)|w.scatter_(0, k, y)
w[: n // 2].copy_(x[: n // 2])|x[::2] + y[::2]|x[1:] * y[:-1]|x[::2].clone()|x.view(-1, 2).sum(1)|k + k|k * 3|k // 7
k % 7|k & 255|k << 1|k == 5|k.sum()|k.max()|k.clamp(0, 10)|k.abs()|k.cumsum(0)|F.one_hot(k % 16)|T.complex(x, y)
T.polar(p, x)|T.fft.fft(x)|T.fft.rfft(x)|T.fft.irfft(T.fft.rfft(x))
"""

# Of matrices M, M2 of N x 64, wide of 16 rows; row (64,), column (N, 1); kN places among the rows, kNC among columns.
ROWS = """
M + row|M * column|M - M.mean(1, keepdim=True)|M.sum(0)|M.sum(1)|M.mean(0)|M.mean(1)|M.var(1)|M.var(0)|M.std(1)
M.norm(dim=1)|M.amax(1)|M.max(1)|M.argmax(1)|M.min(0)|M.prod(1)|M.logsumexp(1)|M.softmax(1)|M.log_softmax(1)
M.softmax(0)|M.cumsum(1)|M.cumsum(0)|M.cummax(1)|M.cumprod(1)|M.logcumsumexp(1)|M.sort(1)|M.topk(5, 1)|M.median(1)
M.kthvalue(2, 1)|M.unique(dim=0) if n < 1e5 else M.sort(1)|M.t().contiguous()|M.t() + M2.t()|M.flip(1)|M.roll(3, 1)
M.triu()|M.tril()|M.repeat(2, 1)|M.expand(2, *M.shape).sum()|M.chunk(4, 1)|M[kN]|M.index_select(0, kN)
M.index_select(1, kC)|M.gather(1, kNC)|M.gather(0, kNC.clamp(max=M.shape[0] - 1))|M.take_along_dim(kNC, 1)|M[kN, kC64]
M[:, :32]|M[:, ::2].contiguous()|M[M > 0]|T.zeros_like(M).scatter_add_(0, kN[:, None].expand(-1, 64), M)
T.zeros_like(M).index_add_(0, kN, M)|T.zeros_like(M).scatter_reduce_(0, kN[:, None].expand(-1, 64), M, 'amax')
M.scatter(1, kNC, M2)|M.gather(0, kN[:, None].expand(-1, 64))|F.layer_norm(M, (64,))|F.layer_norm(M, (64,), row, row)
F.rms_norm(M, (64,))|F.normalize(M)|F.batch_norm(M, None, None, training=True)|F.batch_norm(M, row, p64, row, row)
F.cosine_similarity(M, M2)|F.pairwise_distance(M, M2)|F.cross_entropy(M, tN)|F.nll_loss(M, tN)
F.multi_margin_loss(M, tN)|F.embedding(kN, M)|F.embedding_bag(kN, M, offsets)|F.one_hot(tN, 64)|F.linear(M, w64)
F.linear(M, w64, row)|M @ w64|M2.t() @ M|T.einsum('nc,nc->n', M, M2)|T.einsum('nc,dc->nd', M, w64)|(M * M2).sum(1)
T.addmm(row, M, w64)|T.bmm(M.view(-1, 8, 8), M2.view(-1, 8, 8))|M.view(-1, 8, 8) @ M2.view(-1, 8, 8).mT
T.outer(row, row)|T.kron(row, row)|T.cat((M, M2), 1)|T.stack((M, M2), 1)|M.unfold(1, 4, 4).sum(-1)|F.pad(M, (1, 1))
M.unbind(1)|T.meshgrid(row, row)|T.tensordot(M, w64, 1)|T.cov(M.t())|T.corrcoef(M.t())|T.cdist(M[:512], M2[:512])
T.multinomial(P, 1)|M.argsort(1)|F.gumbel_softmax(M)|F.glu(M)|M.nansum(1)|M.mean((0, 1))|M.std((0, 1))|M.any(1)
(M > 0).sum(1)|M.aminmax(dim=1)|M.diff(dim=1)|M.clamp(min=row)|T.maximum(M, row)|M.addcmul(row, column)|wide.sum(1)
wide.sum(0)|wide.mean(1)|wide.softmax(1)|wide.amax(1)|wide.argmax(1)|wide.cumsum(1)|wide.norm(dim=1)
wide.t().contiguous()|wide + wide[0]|wide * wide[:, :1]|F.layer_norm(wide, wide.shape[1:])|wide.sort(1)
wide.topk(10, 1)|wide.logsumexp(1)|wide.var(1)
"""

# Of images I, B x C x H x W, and what convolutions take.
IMAGES = """
F.conv2d(I, c33, padding=1)|F.conv2d(I, c33, stride=2)|F.conv2d(I, c11)|F.conv2d(I, cdw, padding=1, groups=C)
F.conv2d(I, c33, dilation=2)|F.conv2d(I, cg, padding=1, groups=2)|F.conv_transpose2d(I, c22, stride=2)
F.conv1d(I.flatten(2), c13)|F.unfold(I, 3)|F.max_pool2d(I, 2)|F.avg_pool2d(I, 2)|F.max_pool2d(I, 3, 1, 1)
F.avg_pool2d(I, 3, 1, 1)|F.adaptive_avg_pool2d(I, 1)|F.adaptive_avg_pool2d(I, 4)|F.adaptive_max_pool2d(I, 4)
F.lp_pool2d(I, 2, 2)|F.interpolate(I, scale_factor=2)|F.interpolate(I, scale_factor=2, mode='bilinear')
F.interpolate(I, scale_factor=0.5, mode='area')|F.interpolate(I, scale_factor=2, mode='bicubic')
F.grid_sample(I, grid, align_corners=False)|F.affine_grid(theta, I.shape, align_corners=False)|F.pixel_shuffle(I, 2)
F.pixel_unshuffle(I, 2)|F.pad(I, (1, 1, 1, 1))|F.pad(I, (1, 1, 1, 1), mode='reflect')
F.pad(I, (1, 1, 1, 1), mode='replicate')|F.batch_norm(I, None, None, training=True)|F.batch_norm(I, vc, pc, vc, vc)
F.group_norm(I, 2)|F.instance_norm(I)|F.layer_norm(I, I.shape[1:])|F.local_response_norm(I, 2)|F.dropout2d(I, 0.1)
I.mean((2, 3))|I.sum((0, 2, 3))|I.amax((2, 3))|I.var((0, 2, 3))|I.permute(0, 2, 3, 1).contiguous()|I.flip(3)
I + vc[:, None, None]|I * I.mean((2, 3), keepdim=True)|I.flatten(1)|I.transpose(2, 3).contiguous()|I.rot90(1, (2, 3))
F.channel_shuffle(I, 2)|I.to(memory_format=T.channels_last)|F.softmax(I, 1)|I.argmax(1)|F.relu(I, inplace=False)
I.softmax(-1)
"""

# Forward and backward: gradients of what has `_` in its name.
GRADIENTS = """
(x_ + y_).sum()|(x_ * y_).sum()|(x_ / p).sum()|x_.exp().sum()|x_.tanh().sum()|x_.sigmoid().sum()|x_.relu().sum()
F.gelu(x_).sum()|F.silu(x_).sum()|F.leaky_relu(x_).sum()|F.elu(x_).sum()|F.softplus(x_).sum()|x_.abs().sum()
x_.clamp(-1, 1).sum()|(x_ ** 2).mean()|T.where(b, x_, y_).sum()|x_.masked_fill(b, 0.0).sum()|x_[k].sum()
x_.cumsum(0).sum()|x_.softmax(0)[0]|x_.logsumexp(0)|x_.norm()|x_.var()|F.mse_loss(x_, y)|F.smooth_l1_loss(x_, y)
F.binary_cross_entropy_with_logits(x_, u)|F.dropout(x_, 0.1).sum()|T.cat((x_, y_)).sum()|F.hardswish(x_).sum()
F.mish(x_).sum()|T.maximum(x_, y_).sum()|x_.prod()|T.lerp(x_, y_, 0.3).sum()|x_.sin().sum()|p_.log().sum()
p_.sqrt().sum()|(M_ + row_).sum()|(M_ * column).sum()|M_.softmax(1)[:, 0].sum()|M_.log_softmax(1)[:, 0].sum()
F.cross_entropy(M_, tN)|M_.sum(1).sum()|M_.amax(1).sum()|M_.max(1)[0].sum()|M_.mean(0).sum()|M_.var(1).sum()
M_.logsumexp(1).sum()|F.layer_norm(M_, (64,), row_, row_).sum()|F.rms_norm(M_, (64,), row_).sum()
F.batch_norm(M_, None, None, row_, row_, training=True).sum()|F.linear(M_, w64_, row_).sum()|F.embedding(kN, M_).sum()
M_.gather(1, kNC).sum()|M_[kN].sum()|T.zeros_like(M).index_add(0, kN, M_).sum()|F.normalize(M_).sum()
M_.t().contiguous().sum()|T.einsum('nc,dc->nd', M_, w64_).sum()|F.conv2d(I_, c33_, padding=1).sum()
F.conv2d(I_, c11_).sum()|F.conv2d(I_, cdw_, padding=1, groups=C).sum()|F.max_pool2d(I_, 2).sum()
F.avg_pool2d(I_, 2).sum()|F.batch_norm(I_, None, None, vc_, vc_, training=True).sum()
F.group_norm(I_, 2, vc_, vc_).sum()|F.interpolate(I_, scale_factor=2, mode='bilinear').sum()
F.adaptive_avg_pool2d(I_, 1).sum()|F.instance_norm(I_).sum()|F.pad(I_, (1, 1, 1, 1)).sum()
F.conv_transpose2d(I_, c22_, stride=2).sum()|I_.mean((2, 3)).sum()
"""

# Of square matrices S, S2 and what linear algebra takes; at most a million elements, they cost their number ** 1.5.
SQUARE = """
S @ S2|S.mT @ S2|S @ S2.mT|T.mv(S, S[0])|T.linalg.inv(D)|T.linalg.solve(D, S)|T.linalg.cholesky(D)|T.linalg.qr(S)
T.linalg.det(D)|T.linalg.slogdet(D)|T.linalg.eigh(D)|T.linalg.svd(S)|T.linalg.lstsq(D, S)
T.linalg.solve_triangular(S.triu() + D, S, upper=True)|T.linalg.lu_factor(D)|T.linalg.norm(S)
T.linalg.matrix_power(S / 100, 3)|T.trace(S)|S.diagonal().sum()|T.diag(S[0])|T.block_diag(S, S)|S.triu()
T.baddbmm(A3, A3, A3)|A3 @ A3|T.linalg.inv(A3D)|T.linalg.cholesky(A3D)|T.linalg.solve(A3D, A3)
F.scaled_dot_product_attention(Q, Q, Q)|F.scaled_dot_product_attention(Q, Q, Q, is_causal=True)|T.fft.fft2(S)
T.fft.rfft2(S)|T.fft.ifft2(T.fft.fft2(S))|T.fft.fft(S, dim=0)|T.fft.rfft(S)|T.fft.irfft(T.fft.rfft(S))
T.linalg.svdvals(S)|T.linalg.eigvalsh(D)|T.linalg.pinv(S)|T.linalg.matrix_exp(S / 100)|T.linalg.det(A3)
T.linalg.svd(S[:, : S.shape[1] // 8], full_matrices=False)|T.linalg.pinv(S[:, : S.shape[1] // 8])|T.linalg.svd(A3)
T.linalg.eigh(A3D)|T.linalg.lstsq(S[:, : S.shape[1] // 8], S)|T.cdist(S, S2, p=1)|T.cov(S)
"""

# Of integers of both signs k, j and w; d positive, p places; matrices K of N x 64, k64, a row and a column.
INTEGERS = """
k + j|k - j|k * j|k + 1|k * 3|k // 7|k % 7|k // d|k % d|T.fmod(k, d)|T.div(k, d, rounding_mode='trunc')|-k|k.abs()
k.sign()|k.square()|k ** 2|k & j|T.bitwise_or(k, j)|k ^ j|~k|k << 2|k >> 2|k == j|k < j|k >= 5|k != 0|T.maximum(k, j)
T.minimum(k, j)|k.clamp(0, 10)|k.clamp(min=5)|T.where(k > j, k, j)|k.masked_fill(k > j, 0)|k[k > j]|k.nonzero()
T.gcd(k, j)|k.sum()|k.prod()|k.max()|k.min()|k.amax()|k.argmax()|k.any()|k.all()|k.count_nonzero()|k.cumsum(0)
k.cumprod(0)|k.cummax(0)|k.diff()|k.sort()|k.argsort()|k.topk(10)|k.kthvalue(3)|k.median()|k.unique()|T.bincount(d)
T.searchsorted(edges, k)|k[p]|k.gather(0, p)|k.index_select(0, p)|k.take(p)|k.scatter(0, p, j)|k.scatter_add(0, p, j)
k.index_add(0, p, j)|k.flip(0)|k.roll(5)|k.clone()|k.float()|k.double()|k.int()|k.bool()|k.half()|k.repeat(3)
k.repeat_interleave(2)|T.zeros_like(k)|T.full((n,), 3)|T.arange(n)|T.cat((k, j))|T.stack((k, j))
T.randint(0, 10, (n,))|T.randperm(n)|w.add_(j)|w.mul_(3)|w.copy_(j)|w.fill_(1)|w.zero_()|w.clamp_(0, 10)
w.masked_fill_(k > 5, 0)|k[::2] + j[::2]|k[::2].clone()|F.one_hot(d % 16)|K + krow|K * kcolumn|K.sum(0)|K.sum(1)
K.max(1)|K.argmax(1)|K.cumsum(1)|K.sort(1)|K.topk(5, 1)|K.t().contiguous()|K @ k64|K.gather(1, c)|K.flip(1)|K.triu()
K[r]|K[:, ::2].contiguous()|K.any(1)|(K > 0).sum(1)|T.cat((K, K), 1)
"""

GROUPS = {"flat": FLAT, "rows": ROWS, "images": IMAGES, "gradients": GRADIENTS, "square": SQUARE}
GROUPS["integers"] = INTEGERS  # in int64 alone
LEAST_S = 0.02  # a sample calls so often that it takes this long


def expressions(group: str) -> list[str]:
    """The group's texts."""
    return [text for line in GROUPS[group].strip().splitlines() for text in line.split("|")]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to time."""
    parser.add_argument("--group", choices=sorted(GROUPS), required=True)
    parser.add_argument("--size", type=int, choices=SIZES, required=True)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--only", default="", help="expressions that contain this text")


def _names(torch: Any, n: int, group: str, dtype: Any) -> dict[str, Any]:
    """What expressions of a group are about, for about n elements."""
    torch.manual_seed(0)
    F = torch.nn.functional

    def normal(*shape: int) -> Any:
        return torch.randn(*shape).to(dtype)

    names = {"T": torch, "F": F, "n": n}
    if group == "integers":
        N = n // 64
        names |= {name: torch.randint(-1000, 1000, (n,)) for name in "kjw"}
        names |= {
            "d": torch.randint(1, 1000, (n,)), "p": torch.randint(0, n, (n,)), "r": torch.randint(0, N, (N,)),
            "edges": torch.arange(-1000, 1000, 20), "K": torch.randint(-1000, 1000, (N, 64)),
            "k64": torch.randint(-1000, 1000, (64, 64)), "krow": torch.randint(-9, 9, (64,)),
            "kcolumn": torch.randint(-9, 9, (N, 1)), "c": torch.randint(0, 64, (N, 64)),
        }  # fmt: skip
    if group in ("flat", "gradients"):
        x = normal(n)
        names |= {
            "x": x, "y": normal(n), "z": normal(n), "w": normal(n), "p": normal(n).abs() + 0.1, "one": normal(1),
            "u": (torch.rand(n) * 0.98 + 0.01).to(dtype), "b": x > 0, "k": torch.randint(0, n, (n,)),
            "edges": torch.linspace(-3, 3, 100).to(dtype),
        }  # fmt: skip
    if group in ("rows", "gradients"):
        N = n // 64
        names |= {
            "M": normal(N, 64), "M2": normal(N, 64), "row": normal(64), "p64": normal(64).abs() + 0.1,
            "column": normal(N, 1), "w64": normal(64, 64), "wide": normal(16, n // 16),
            "P": torch.rand(N, 64).to(dtype),
            "kN": torch.randint(0, N, (N,)), "kC": torch.randint(0, 64, (32,)), "kC64": torch.randint(0, 64, (N,)),
            "kNC": torch.randint(0, 64, (N, 64)), "tN": torch.randint(0, 64, (N,)), "offsets": torch.arange(0, N, 4),
        }  # fmt: skip
    if group in ("images", "gradients"):
        B, C, S = {1_000: (1, 4, 16), 100_000: (2, 16, 56), 10_000_000: (8, 64, 140)}[n]
        names |= {
            "I": normal(B, C, S, S), "C": C, "c33": normal(C, C, 3, 3), "c11": normal(C, C, 1, 1),
            "cdw": normal(C, 1, 3, 3),
            "cg": normal(C, C // 2, 3, 3), "c22": normal(C, C, 2, 2), "c13": normal(C, C, 3), "vc": normal(C),
            "pc": normal(C).abs() + 0.1, "grid": (torch.rand(B, S, S, 2) * 2 - 1).to(dtype), "theta": normal(B, 2, 3),
        }  # fmt: skip
    if group == "square":
        side = math.isqrt(min(n, 1_000_000))
        S, A3 = normal(side, side), normal(max(1, n // 6400), 8, 8)
        names |= {
            "S": S, "S2": normal(side, side), "D": S @ S.mT / side + torch.eye(side).to(dtype), "A3": A3,
            "A3D": A3 @ A3.mT + torch.eye(8).to(dtype),
            "Q": normal(max(1, n // 65_536), 4, min(256, max(16, n // 256)), 64),
        }  # fmt: skip
    leaves = {f"{name}_": value for name, value in names.items() if getattr(value, "dtype", None) == dtype}
    return names | {name: value.clone().requires_grad_() for name, value in leaves.items() if group == "gradients"}


def run(library: Library, args: argparse.Namespace) -> dict[str, Any]:
    """Seconds per call of each expression; what raises is named with its error."""
    torch = library.torch
    torch.set_num_threads(args.threads)
    dtype = getattr(torch, args.dtype)
    names = _names(torch, args.size, args.group, dtype)
    leaves = [value for name, value in names.items() if name.endswith("_")]
    found: dict[str, Any] = {}
    for text in expressions(args.group):
        if args.only and args.only not in text:
            continue
        try:
            found[text] = _timed(_call(text, names, leaves), args.samples)
        except (RuntimeError, TypeError, ValueError, NotImplementedError, IndexError, AttributeError) as error:
            found[text] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return {"samples": found}


def _call(text: str, names: dict[str, Any], leaves: list[Any]) -> Callable[[], Any]:
    scope = SimpleNamespace(**names).__dict__
    call: Callable[[], Any] = eval(f"lambda: {text}", scope)  # the texts of this file
    if not leaves:
        return call

    def backward() -> None:
        for leaf in leaves:
            leaf.grad = None
        call().backward()

    return backward


def _timed(call: Callable[[], Any], samples: int) -> list[float]:
    begin = time.perf_counter()
    call()
    first = time.perf_counter() - begin
    if first > 2:
        return [first]
    begin = time.perf_counter()
    call()
    count = max(1, int(LEAST_S / max(time.perf_counter() - begin, 1e-7)))
    found = []
    for _ in range(samples):
        begin = time.perf_counter()
        for _ in range(count):
            call()
        found.append((time.perf_counter() - begin) / count)
    return found

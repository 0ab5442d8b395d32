"""Models of images for `models_wide`, written against PyTorch's names; `torch` is whichever library runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.cases.wide_parts import Wide, module, numbers, residual, values

CLASSES = 100


def images(side: int, channels: int = 3, classes: int = CLASSES) -> Callable[[Any, int], tuple[tuple[Any, ...], Any]]:
    """Batches of square images and their classes."""

    def batch(torch: Any, size: int) -> tuple[tuple[Any, ...], Any]:
        return (values(torch, (size, channels, side, side), 1000),), numbers(torch, (size,), classes, 1001)

    return batch


def resnet18(torch: Any) -> Any:
    """K. He et al., "Deep residual learning for image recognition", 2016."""
    nn = torch.nn

    def block(before: int, after: int, stride: int) -> Any:
        same = before == after and stride == 1
        shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
        return residual(
            torch,
            nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(inplace=True),
            nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after),
            shortcut=None if same else shortcut, last=nn.ReLU(inplace=True),
        )  # fmt: skip

    stages = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2)]
    return nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1),
        *[block(*sizes) for sizes in [*stages, (512, 512, 1)]],
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, CLASSES),
    )  # fmt: skip


def mobilenet_v2(torch: Any) -> Any:
    """M. Sandler et al., "MobileNetV2: inverted residuals and linear bottlenecks", 2018."""
    nn = torch.nn

    def conv(before: int, after: int, kernel: int, stride: int = 1, groups: int = 1) -> list[Any]:
        layer = nn.Conv2d(before, after, kernel, stride, kernel // 2, groups=groups, bias=False)
        return [layer, nn.BatchNorm2d(after), nn.ReLU6(inplace=True)]

    def block(before: int, after: int, stride: int, expand: int) -> Any:
        hidden = before * expand
        layers = [*(conv(before, hidden, 1) if expand > 1 else []), *conv(hidden, hidden, 3, stride, hidden)]
        layers += [nn.Conv2d(hidden, after, 1, bias=False), nn.BatchNorm2d(after)]
        return residual(torch, *layers) if stride == 1 and before == after else nn.Sequential(*layers)

    layers, before = conv(3, 32, 3, 2), 32
    for expand, after, count, stride in [
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
    ]:  # fmt: skip
        for i in range(count):
            layers.append(block(before, after, stride if i == 0 else 1, expand))
            before = after
    layers += [*conv(320, 1280, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, CLASSES)]
    return nn.Sequential(*layers)


def efficient_net(torch: Any) -> Any:
    """Inverted residuals with squeeze and excitation, as in M. Tan and Q. Le, "EfficientNet", 2019."""
    nn = torch.nn

    def gate(hidden: int, squeezed: int) -> Any:
        layers = [nn.AdaptiveAvgPool2d(1), nn.Conv2d(hidden, squeezed, 1), nn.SiLU(), nn.Conv2d(squeezed, hidden, 1)]
        return module(torch, lambda m, x: x * m.of(x), of=nn.Sequential(*layers, nn.Sigmoid()))

    def block(before: int, after: int, kernel: int, stride: int) -> Any:
        hidden = 4 * before
        layers = [
            nn.Conv2d(before, hidden, 1, bias=False), nn.BatchNorm2d(hidden), nn.SiLU(),
            nn.Conv2d(hidden, hidden, kernel, stride, kernel // 2, groups=hidden, bias=False),
            nn.BatchNorm2d(hidden), nn.SiLU(), gate(hidden, before // 4),
            nn.Conv2d(hidden, after, 1, bias=False), nn.BatchNorm2d(after),
        ]  # fmt: skip
        return residual(torch, *layers) if stride == 1 and before == after else nn.Sequential(*layers)

    return nn.Sequential(
        nn.Conv2d(3, 24, 3, 2, 1, bias=False), nn.BatchNorm2d(24), nn.SiLU(),
        block(24, 32, 3, 2), block(32, 32, 3, 1), block(32, 56, 5, 2), block(56, 56, 5, 1), block(56, 112, 5, 2),
        block(112, 112, 5, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(112, CLASSES),
    )  # fmt: skip


def conv_next(torch: Any) -> Any:
    """Z. Liu et al., "A ConvNet for the 2020s", 2022: wide depthwise windows, layer norm over channels."""
    nn = torch.nn

    def block(width: int) -> Any:
        def forward(m: Any, x_BCHW: Any) -> Any:
            y_BHWC = m.mix(m.window(x_BCHW).permute(0, 2, 3, 1))
            return x_BCHW + (m.scale * y_BHWC).permute(0, 3, 1, 2)

        mix = [nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)]
        return module(
            torch, forward, window=nn.Conv2d(width, width, 7, padding=3, groups=width), mix=nn.Sequential(*mix),
            scale=nn.Parameter(torch.ones(width) * 0.1),
        )  # fmt: skip

    def norm(width: int) -> Any:
        def forward(m: Any, x_BCHW: Any) -> Any:
            return m.norm(x_BCHW.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

        return module(torch, forward, norm=nn.LayerNorm(width))

    return nn.Sequential(
        nn.Conv2d(3, 48, 4, 4), norm(48), block(48), block(48), norm(48), nn.Conv2d(48, 96, 2, 2), block(96), block(96),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(96), nn.Linear(96, CLASSES),
    )  # fmt: skip


def unet(torch: Any) -> Any:
    """O. Ronneberger et al., "U-Net", 2015, with batch norm; a class for each pixel, the classes last."""
    nn = torch.nn

    def double(before: int, after: int) -> Any:
        layers: list[Any] = []
        for width in (before, after):
            layers += [nn.Conv2d(width, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
        return nn.Sequential(*layers)

    def forward(m: Any, x: Any) -> Any:
        a = m.down1(x)
        b = m.down2(m.pool(a))
        c = m.bottom(m.pool(b))
        b = m.up2(torch.cat([m.rise2(c), b], 1))
        a = m.up1(torch.cat([m.rise1(b), a], 1))
        return m.head(a).permute(0, 2, 3, 1)

    return module(
        torch, forward, down1=double(3, 16), down2=double(16, 32), bottom=double(32, 64), pool=nn.MaxPool2d(2),
        rise2=nn.ConvTranspose2d(64, 32, 2, 2), up2=double(64, 32), rise1=nn.ConvTranspose2d(32, 16, 2, 2),
        up1=double(32, 16), head=nn.Conv2d(16, 4, 1),
    )  # fmt: skip


def _segmented(torch: Any, size: int) -> tuple[tuple[Any, ...], Any]:
    return (values(torch, (size, 3, 64, 64), 1000),), numbers(torch, (size, 64, 64), 4, 1001)


def vit(torch: Any) -> Any:
    """A. Dosovitskiy et al., "An image is worth 16x16 words", 2021; 64 patches and a class token."""
    nn, width, heads = torch.nn, 192, 3

    def attend(m: Any, x: Any) -> Any:
        return m.attention(x, x, x, need_weights=False)[0]

    def block() -> Any:
        attention = nn.MultiheadAttention(width, heads, batch_first=True)
        mlp = [nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)]
        return nn.Sequential(
            residual(torch, nn.LayerNorm(width), module(torch, attend, attention=attention)),
            residual(torch, nn.LayerNorm(width), *mlp),
        )

    def forward(m: Any, x_BCHW: Any) -> Any:
        x_BTD = m.patches(x_BCHW).flatten(2).transpose(1, 2)
        x_BTD = torch.cat([m.token.expand(x_BTD.shape[0], -1, -1), x_BTD], 1) + m.places
        return m.head(m.norm(m.blocks(x_BTD))[:, 0])

    return module(
        torch, forward, patches=nn.Conv2d(3, width, 8, 8), token=nn.Parameter(torch.zeros(1, 1, width)),
        places=nn.Parameter(torch.zeros(1, 65, width)), blocks=nn.Sequential(*[block() for _ in range(4)]),
        norm=nn.LayerNorm(width), head=nn.Linear(width, CLASSES),
    )  # fmt: skip


def gan(torch: Any) -> Any:
    """A. Radford et al., "Unsupervised representation learning with deep convolutional GANs", 2016, of 32 x 32."""
    nn = torch.nn

    def up(before: int, after: int, stride: int, padding: int) -> list[Any]:
        layer = nn.ConvTranspose2d(before, after, 4, stride, padding, bias=False)
        return [layer, nn.BatchNorm2d(after), nn.ReLU(True)]

    def down(before: int, after: int) -> list[Any]:
        layer = nn.Conv2d(before, after, 4, 2, 1, bias=False)
        return [layer, nn.BatchNorm2d(after), nn.LeakyReLU(0.2, inplace=True)]

    generator = nn.Sequential(
        *up(64, 256, 1, 0), *up(256, 128, 2, 1), *up(128, 64, 2, 1),
        nn.ConvTranspose2d(64, 3, 4, 2, 1, bias=False), nn.Tanh(),
    )  # fmt: skip
    judge = nn.Sequential(
        nn.Conv2d(3, 64, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True), *down(64, 128), *down(128, 256),
        nn.Conv2d(256, 1, 4, 1, 0, bias=False), nn.Flatten(0),
    )  # fmt: skip
    return module(torch, lambda m, noise, real: m.generator(noise), generator=generator, judge=judge)


def _noise(torch: Any, size: int) -> tuple[tuple[Any, ...], Any]:
    return (values(torch, (size, 64, 1, 1), 1000), values(torch, (size, 3, 32, 32), 1001).clamp(-1, 1)), None


def _gan_loss(torch: Any, model: Any, inputs: tuple[Any, ...], target: Any, turn: int) -> Any:
    """Of the judge, then of the generator."""
    judged = torch.nn.functional.binary_cross_entropy_with_logits
    noise, real = inputs
    made = model.generator(noise)
    if turn == 1:
        of = model.judge(made)
        return judged(of, torch.ones_like(of))
    of_real, of_made = model.judge(real), model.judge(made.detach())
    return judged(of_real, torch.ones_like(of_real)) + judged(of_made, torch.zeros_like(of_made))


def vae(torch: Any) -> Any:
    """D. Kingma and M. Welling, "Auto-encoding variational Bayes", 2014, of convolutions with group norm."""
    nn = torch.nn

    def conv(before: int, after: int, stride: int) -> list[Any]:
        return [nn.Conv2d(before, after, 3, stride, 1), nn.GroupNorm(8, after), nn.SiLU()]

    def forward(m: Any, x: Any, noise: Any) -> Any:
        mean, spread = m.encoder(x).chunk(2, 1)
        made = m.decoder(m.widen(mean + noise * (0.5 * spread).exp()).view(-1, 64, 8, 8))
        return made, mean, spread

    return module(
        torch, forward,
        encoder=nn.Sequential(*conv(3, 32, 2), *conv(32, 64, 2), *conv(64, 64, 1), nn.Flatten(), nn.Linear(4096, 128)),
        widen=nn.Linear(64, 4096),
        decoder=nn.Sequential(
            *conv(64, 64, 1), nn.Upsample(scale_factor=2), *conv(64, 32, 1), nn.Upsample(scale_factor=2),
            nn.Conv2d(32, 3, 3, 1, 1),
        ),
    )  # fmt: skip


def _with_noise(torch: Any, size: int) -> tuple[tuple[Any, ...], Any]:
    return (values(torch, (size, 3, 32, 32), 1000), values(torch, (size, 64), 1001)), None


def _vae_loss(torch: Any, model: Any, inputs: tuple[Any, ...], target: Any, turn: int) -> Any:
    made, mean, spread = model(*inputs)
    distance = torch.nn.functional.mse_loss(made, inputs[0])
    return distance - 0.5e-3 * (1 + spread - mean.pow(2) - spread.exp()).mean()


IMAGES: dict[str, Wide] = {
    "resnet18": Wide(text="ResNet-18, 64x64", build=resnet18, batch=images(64)),
    "mobilenet_v2": Wide(text="MobileNetV2, 64x64", build=mobilenet_v2, batch=images(64)),
    "efficient_net": Wide(text="EfficientNet-like, 64x64", build=efficient_net, batch=images(64)),
    "conv_next": Wide(text="ConvNeXt blocks, 64x64", build=conv_next, batch=images(64)),
    "unet": Wide(text="U-Net, 64x64", build=unet, batch=_segmented),
    "vit": Wide(text="ViT, 65 tokens, width 192", build=vit, batch=images(64)),
    "gan": Wide(
        text="DCGAN, 32x32", build=gan, batch=_noise, loss=_gan_loss,
        groups=lambda model: [model.judge.parameters(), model.generator.parameters()],
    ),
    "vae": Wide(text="VAE of convolutions, 32x32", build=vae, batch=_with_noise, loss=_vae_loss),
}  # fmt: skip

"""ResNets after He et al., "Deep residual learning for image recognition" (2016), table 1, and the one for gait."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn


class Padded(nn.Module):
    """A shortcut without parameters: every other value, and zeros for the channels that there were not (option A)."""

    def __init__(self, step: int, more: int) -> None:
        super().__init__()
        self.step, self.more = step, more

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = nn.functional.pad(x[:, :, :: self.step, :: self.step], (0, 0, 0, 0, 0, self.more))
        return made


class Block(nn.Module):
    """Convolutions with normalisation, a shortcut around them (adapted where the shape changes), and their sum.

    ``plan``: channels, kernel and stride of each convolution.
    """

    def __init__(self, cin: int, plan: Sequence[tuple[int, int, int]], *, projects: bool = True) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels, step = cin, 1
        for i, (cout, kernel, stride) in enumerate(plan):
            layers += [nn.ReLU(inplace=True)] if i else []
            layers += [nn.Conv2d(channels, cout, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(cout)]
            channels, step = cout, step * stride
        self.body = nn.Sequential(*layers)
        self.shortcut: nn.Module = nn.Identity()
        if (step != 1 or channels != cin) and not projects:
            self.shortcut = Padded(step, channels - cin)
        elif step != 1 or channels != cin:
            self.shortcut = nn.Sequential(nn.Conv2d(cin, channels, 1, step, bias=False), nn.BatchNorm2d(channels))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.relu(self.body(x) + self.shortcut(x))
        return made


class ResNet(nn.Module):
    """[n, cin, h, w] to [n, classes], in four stages of ``blocks``."""

    def __init__(
        self, blocks: Sequence[int], *, bottleneck: bool, cin: int = 3, classes: int = 1000, projects: bool = True
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(cin, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        )
        channels = 64
        stages = []
        for i, (count, width) in enumerate(zip(blocks, (64, 128, 256, 512), strict=True)):
            stage = []
            for j in range(count):
                stride = 2 if i and not j else 1
                if bottleneck:  # the stride is the 3x3 convolution's
                    plan = [(width, 1, 1), (width, 3, stride), (4 * width, 1, 1)]
                else:
                    plan = [(width, 3, stride), (width, 3, 1)]
                stage.append(Block(channels, plan, projects=projects))
                channels = plan[-1][0]
            stages.append(nn.Sequential(*stage))
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.classifier = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.classifier(self.flatten(self.pool(self.stages(self.stem(x)))))
        return made


def resnet18(classes: int = 1000) -> nn.Module:
    """11.7 million parameters."""
    return ResNet((2, 2, 2, 2), bottleneck=False, classes=classes)


def resnet34(classes: int = 1000) -> nn.Module:
    """21.8 million parameters."""
    return ResNet((3, 4, 6, 3), bottleneck=False, classes=classes)


def resnet34_padded(classes: int = 1000) -> nn.Module:
    """ResNet-34 with shortcuts that have no parameters: 21.6 million."""
    return ResNet((3, 4, 6, 3), bottleneck=False, classes=classes, projects=False)


def resnet50(classes: int = 1000) -> nn.Module:
    """25.6 million parameters."""
    return ResNet((3, 4, 6, 3), bottleneck=True, classes=classes)


def resnet_gait(classes: int = 150) -> nn.Module:
    """ResNet-34 for 50 maps of optical flow of 60 x 60, as far as the text of Castro et al. says what theirs is."""
    return ResNet((3, 4, 6, 3), bottleneck=False, cin=50, classes=classes)

"""A small training on generated images, for campaigns: batch size, network, precision, threads and seed are options.

It marks its phases, and says after each epoch how good it is. On a GPU it trains there.
"""

import argparse
import contextlib

import torch
from torch import nn

from powerd_client import Meter

SIZE, CLASSES = 16, 10


def network(name: str, width: int) -> nn.Module:
    """``cnn``: three convolutions; ``mlp``: three layers; ``wide``: the first with twice the channels."""
    w = width * (2 if name == "wide" else 1)
    if name == "mlp":
        return nn.Sequential(
            nn.Flatten(), nn.Linear(3 * SIZE * SIZE, 8 * w), nn.ReLU(), nn.Linear(8 * w, 8 * w), nn.ReLU(),
            nn.Linear(8 * w, CLASSES),
        )  # fmt: skip
    return nn.Sequential(
        nn.Conv2d(3, w, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(w, 2 * w, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(2 * w, 4 * w, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(4 * w * (SIZE // 8) ** 2, CLASSES),
    )  # fmt: skip


def images(count: int, seed: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Each class is a pattern of its own under noise: it can be learnt, and not at once."""
    generator = torch.Generator().manual_seed(1)
    patterns = torch.randn(CLASSES, 3, SIZE, SIZE, generator=generator)
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    x = 0.5 * patterns[labels] + torch.randn(count, 3, SIZE, SIZE, generator=generator)
    return x.to(device), labels.to(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=("cnn", "wide", "mlp"), default="cnn")
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--images", type=int, default=2048)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--precision", choices=("fp32", "tf32", "bf16"), default="fp32")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = options.precision == "tf32"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = network(options.model, options.width).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * (options.batch / 64) ** 0.5, momentum=0.9)
    x, labels = images(options.images, options.seed, device)
    test_x, test_labels = images(1000, 10_000, device)
    is_half = options.precision == "bf16"
    precise = torch.autocast(device, torch.bfloat16) if is_half else contextlib.nullcontext()
    with Meter() as meter:
        meter.watch(model, optimizer, model=options.model, batch_size=options.batch)
        for epoch in range(options.epochs):
            total = 0.0
            for at in torch.randperm(options.images).split(options.batch):
                with precise:
                    loss = nn.functional.cross_entropy(model(x[at]), labels[at])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.item() * len(at)
            with torch.no_grad(), precise:
                top1 = (model(test_x).argmax(1) == test_labels).float().mean().item()
            meter.result(epoch=epoch + 1, loss=total / options.images, top1=top1)


if __name__ == "__main__":
    main()

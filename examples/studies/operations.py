"""Operations of the networks of `networks.py`, for one sample, as `joules operations` counts them.

They stand here as numbers because counting takes seconds at the beginning of each run, and needs torch.
"""

from typing import NamedTuple


class Operations(NamedTuple):
    paper: int
    """Of a forward pass; a multiply-accumulate is one operation (the attribute `operations_per_sample`)."""
    executed: int
    """Of forward and backward; a multiply-accumulate is two operations (`operations_executed_per_sample`)."""


OPERATIONS = {
    "alexnet": Operations(715491008, 4144577280),
    "vgg16": Operations(15489979008, 92648177664),
    "vgg19": Operations(19653083008, 117618966528),
    "googlenet": Operations(1600319392, 9260003328),
    "googlenet-auxiliary": Operations(1608903904, 9310236672),
    "inception3": Operations(5764651040, 34240933248),
    "inception4": Operations(12344349504, 73485484416),
    "resnet50": Operations(4122927616, 24299077632),
    "resnet152": Operations(11581690368, 68845731840),
    "xception": Operations(8426228008, 50094617520),
    "caffenet": Operations(726403328, 4135610496),
    "resnet-im": Operations(3657012736, 21630935040),
    "2d-cnn": Operations(784083232, 3328945152),
    "2d-cnn-full5": Operations(800868640, 3429608448),
    "resnet-gait": Operations(445009152, 2381598720),
    "small": Operations(873472, 4454400),
}

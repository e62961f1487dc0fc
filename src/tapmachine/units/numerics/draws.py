"""Random bits, which dominate the time of sampling machines of two-state units."""

import torch
from torch import Tensor

LEVELS = 2**16  # of the random integers; four of them are taken from a 64-bit one


def draw_bits(probability: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Draw 1 with the given probabilities, else 0. The probabilities are overwritten.

    On a CPU in float32 a draw uses only 16 random bits, which makes it several times as fast as `torch.bernoulli`. The
    fractional part of p·2¹⁶ matters in only one of 2¹⁶ cases, and is compared with an 8-bit random remainder that all
    draws of a call share. So each probability is accurate to 2⁻²⁴, and exact at 0 and 1, and two draws depend on each
    other in one of 2³² cases.
    """
    if probability.device.type != "cpu" or probability.dtype != torch.float32:
        return torch.bernoulli(probability, generator=generator)
    count = probability.numel()
    random = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None, generator=generator)
    level = random.view(torch.int16)[:count].float().view(probability.shape)  # from −2¹⁵ to 2¹⁵ − 1
    remainder = torch.randint(2**8, (), generator=generator) / 2**8  # the resolution of float32 near 2¹⁵
    lowest = -LEVELS / 2 - remainder
    threshold = torch.add(lowest, probability, alpha=LEVELS, out=probability)
    return torch.lt(level, threshold, out=level)

"""Draws of bits: the one random number that sampling a machine of two-state units spends its time on."""

import torch
from torch import Tensor

# |i| of a random 32-bit integer, as float32, lies in [0, 2³¹], ends included: a probability of 1 must exceed it
SCALE = 2.0**31 * (1 + 2.0**-23)


def draw_bits(probability: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """1 with the given probabilities, else 0. The probabilities are overwritten.

    On a CPU in float32 one 64-bit random integer makes two draws, several times as fast as `torch.bernoulli`. What is
    drawn with probability p is off by 1.2e-7·p, the rounding of p itself, and exact at 0 and 1.
    """
    if probability.device.type != "cpu" or probability.dtype != torch.float32:
        return torch.bernoulli(probability, generator=generator)
    count = probability.numel()
    pairs = torch.empty((count + 1) // 2, dtype=torch.int64)
    bits = pairs.random_(-(2**63), None, generator=generator).view(torch.int32)[:count]
    uniform = bits.float().abs_().view(probability.shape)
    return torch.lt(uniform, probability.mul_(SCALE), out=uniform)

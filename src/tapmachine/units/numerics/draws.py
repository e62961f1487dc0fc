"""Generation of random bits, which dominates the time required to sample two-state units."""

import torch
from torch import Tensor

LEVELS = 2**16  # number of values of a random integer; one 64-bit integer provides four of them


def draw_bits(probability: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Draw random bits that are 1 with the specified probabilities; the tensor of probabilities is overwritten.

    On a CPU in float32, a draw uses only 16 random bits, which is several times faster than `torch.bernoulli`. The
    fractional part of p·2¹⁶ matters in only one of 2¹⁶ cases. It is compared with an 8-bit random number that is shared
    by all draws of a call. As a result, each probability is accurate to 2⁻²⁴ and exact at 0 and 1, and two draws are
    statistically dependent in only one of 2³² cases. If a probability is NaN, the result is 0, as in `bernoulli`.
    """
    if probability.device.type != "cpu" or probability.dtype != torch.float32:
        return bernoulli(probability, generator)
    count = probability.numel()
    random = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None, generator=generator)
    level = random.view(torch.int16)[:count].float().view(probability.shape)  # from −2¹⁵ to 2¹⁵ − 1
    remainder = torch.randint(2**8, (), generator=generator) / 2**8  # the resolution of float32 near 2¹⁵
    lowest = -LEVELS / 2 - remainder
    threshold = torch.add(lowest, probability, alpha=LEVELS, out=probability)
    return torch.lt(level, threshold, out=level)


def bernoulli(probability: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Draw random bits like `torch.bernoulli`, but return 0 where the probability is NaN.

    `torch.bernoulli` raises an error for NaN, which terminates the process on a GPU. A training step that is too
    large can make probabilities NaN; training detects this in the loss and undoes the step.
    """
    return torch.bernoulli(probability.nan_to_num(nan=0.0), generator=generator)


def draw_index(log_weights: Tensor, generator: torch.Generator | None = None) -> Tensor:  # (..., q) -> (...)
    """Draw an index by an exponential race, in which the index with the earliest arrival time wins."""
    arrival = torch.empty_like(log_weights).exponential_(generator=generator)
    return (log_weights - arrival.log()).argmax(-1)

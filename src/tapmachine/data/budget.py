"""Default number of epochs, batch size, number of chains and learning rate, based on the size of the data.

The defaults were tuned on MNIST and on tables with 400 to 16,000 rows and 15 to 800 columns (docs/design_notes.md).
Small data sets are trained for up to 300 epochs, so that 200 hidden units do not memorize 400 rows. Large data sets are
trained for at least 50 epochs.
"""

import math

LARGEST_BATCH, SMALLEST_BATCH, FEWEST_BATCHES = 100, 10, 4
FEWEST_EPOCHS, MOST_EPOCHS, ENOUGH_STEPS = 50, 300, 20_000
FEWEST_CHAINS, MOST_CHAINS, ROWS_PER_CHAIN = 100, 500, 120
FEWEST_ON_DEVICE, MOST_ON_DEVICE, ROWS_PER_CHAIN_ON_DEVICE = 500, 800, 75  # chains are cheap on an accelerator
SLOWEST, FASTEST, TYPICAL_ROWS, AT_TYPICAL = 4.0, 8.0, 1500, 5.0


def default_batch_size(n_rows: int) -> int:
    """Return the default batch size: a quarter of the number of rows, but at least 10 and at most 100.

    Example:
        >>> [default_batch_size(n) for n in (5, 100, 60_000)]
        [5, 25, 100]
    """
    return min(n_rows, max(SMALLEST_BATCH, min(LARGEST_BATCH, n_rows // FEWEST_BATCHES)))


def default_epochs(n_batches: int | None) -> int:
    """Return the default number of epochs: enough for 20,000 gradient steps, but at least 50 and at most 300.

    Args:
        n_batches: Number of gradient steps per epoch; None if unknown.

    Example:
        >>> [default_epochs(n) for n in (10, 100, 600)]
        [300, 200, 50]
    """
    if not n_batches:
        return FEWEST_EPOCHS
    return max(FEWEST_EPOCHS, min(MOST_EPOCHS, ENOUGH_STEPS // n_batches))


def default_chains(n_rows: int, on_device: bool = False) -> int:
    """Return the default number of persistent chains.

    The default is one chain per 120 rows, with a minimum of 100 and a maximum of 500 chains. On accelerators, the
    default is one chain per 75 rows, with a minimum of 500 and a maximum of 800 chains.

    Example:
        >>> [default_chains(n) for n in (400, 15_000, 60_000)]
        [100, 125, 500]
        >>> [default_chains(n, on_device=True) for n in (400, 15_000, 60_000)]
        [500, 500, 800]
    """
    if on_device:
        return max(FEWEST_ON_DEVICE, min(MOST_ON_DEVICE, n_rows // ROWS_PER_CHAIN_ON_DEVICE))
    return max(FEWEST_CHAINS, min(MOST_CHAINS, n_rows // ROWS_PER_CHAIN))


def pace(n_rows: int) -> float:
    """Return a factor for the learning rate, from 4 for small data sets, which overfit quickly, to 8 for large ones."""
    return min(FASTEST, max(SLOWEST, AT_TYPICAL * math.sqrt(n_rows / TYPICAL_ROWS)))

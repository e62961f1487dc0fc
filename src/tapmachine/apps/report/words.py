"""Short explanations of the terms on a page."""

EXPLANATIONS = {
    "machine": "The layers of units, starting with the visible layer, which holds a row of the data. A Boltzmann "
    "machine assigns a probability to every possible row; training makes the rows of the data probable.",
    "epoch": "One pass of training over all rows of the data.",
    "log-likelihood": "ln P(x), the logarithm of the probability (of the density, for real numbers) that the machine "
    "assigns to a row, averaged over rows, in nats. Higher is better; compare held-out rows between machines.",
    "ln Z": "The normalization of the machine's probabilities: ln P(x) = −F(x) − ln Z. It is a sum over all states, "
    "exact only for small machines, and is otherwise estimated by annealing or by TAP.",
    "start": "A row of the data from which the mean-field (TAP) equations are iterated until they no longer change.",
    "solution": "A state at which the iteration ends: a fixed point of the TAP equations. It holds a mean for every "
    "unit, and looks like a typical row of the data once the machine has learned. Starts that end very close "
    "to each other have the same solution.",
    "stable": "The iteration returns to the solution after a small perturbation.",
    "free energy F": "Measures the probability of a solution and its surroundings: about exp(−F) relative to other "
    "solutions. Lower is more probable. The average of −F estimates ln Z.",
    "basin": "All starts that end in the same solution. A large basin corresponds to a frequent kind of row.",
    "tree": "A solution of the last epoch, put into the equations of an earlier machine, leads to a solution there. "
    "Solutions that lead to the same one share a branch, so the tree shows in which order training separated kinds of "
    "rows.",
    "receptive field": "The weights between one hidden unit and all visible units: what the unit responds to.",
    "association": "For two numbers or binary columns, their correlation; for a number and a category, the correlation "
    "ratio; for two categories, Cramér's V. Only rows in which both are known are used.",
    "difference": "Total variation distance between the columns of data and samples: 0 if their histograms are equal, "
    "1 if they do not overlap. Part of it is sampling noise.",
    "class": "The machine describes a table as a mixture of classes, each with its own averages. A row belongs to the "
    "classes with certain probabilities.",
}

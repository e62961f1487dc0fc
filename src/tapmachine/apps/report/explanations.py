"""Explanations of the terms on the report page."""

from tapmachine.display.html import escape, unfold

EXPLANATIONS = {
    "machine": "The layers of the Boltzmann machine. The first layer is visible and represents one row of the data. "
    "The machine assigns a probability to every possible row, and training increases the probability of the data.",
    "training": "An epoch is one pass over all rows of the data during training.",
    "log-likelihood": "The logarithm ln P(x) of the probability (for real numbers, the density) that the machine "
    "assigns to a row, averaged over rows, in nats. Higher values are better. To compare machines, use held-out rows. "
    "Independent units are a model of the same rows without dependencies between columns.",
    "ln Z": "The logarithm of the normalization constant Z of the probabilities: ln P(x) = −F(x) − ln Z. Z is a sum "
    "over all states, computed exactly for small machines and estimated by annealing or TAP for others.",
    "start": "A row of the data that is used as a starting point for iterating the TAP equations until convergence.",
    "solutions": "A solution is a fixed point of the TAP equations, which consists of a mean for every unit. For a "
    "trained machine, the visible means of a solution resemble a typical row of the data. Fixed points that are very "
    "close to each other are counted as one solution.",
    "stable": "A solution is stable if the iteration returns to it after a small perturbation.",
    "free energy F": "A measure of how probable a solution and its surroundings are. The relative "
    "probability of a solution is about exp(−F), so solutions with a lower F are more probable. The average of −F "
    "estimates ln Z.",
    "probability": "exp(−F) of a solution, divided by the sum over all solutions that were found. If probabilities and "
    "shares of the starts differ, the machine does not represent the groups of its data in their proportions, or F is "
    "not accurate.",
    "basin": "The set of starts that converge to the same solution. A large basin corresponds to a frequent type of "
    "row.",
    "tree": "Each solution of the last epoch is used as a starting point for the machines of earlier epochs. Solutions "
    "that converge to the same solution of an earlier machine share a branch. The tree therefore shows the order in "
    "which training separated different types of rows.",
    "receptive field": "The weights between a hidden unit and all visible units. Receptive fields show which inputs "
    "activate the unit.",
    "association": "A measure of the dependence of two columns: the correlation of two numeric or binary columns, the "
    "correlation ratio of a numeric and a categorical column, or Cramér's V of two categorical columns. Rows in which "
    "a value is missing are ignored.",
    "difference": "Total variation distance between the histograms of a column in the data and in the samples. The "
    "distance is 0 if the histograms are equal and 1 if they do not overlap. Part of the difference is sampling noise.",
    "classes": "The machine models the table as a mixture of classes with different averages. Each row has a "
    "probability of belonging to each class. The averages are those of samples.",
    "surprise": "The surprise of a row is −ln P of its observed cells. The surprise of a cell is −ln P of its value "
    "given the other cells of the row; numbers are measured in standard deviations of their column.",
    "imputation error": "For numbers, the root mean square difference between hidden values and their posterior means, "
    "in the units of the column; for categories, the fraction of wrong values. For comparison, cells are also filled "
    "in with the mean or the most frequent category of the column.",
}


def explain(*names: str) -> str:
    """Return a collapsible list of explanations of terms."""
    parts = "".join(f"<dt>{escape(name)}</dt><dd>{escape(EXPLANATIONS[name])}</dd>" for name in names)
    return unfold("What do these terms mean?", f"<dl>{parts}</dl>", "words")

"""The scikit-learn estimator, one layer of methods per module.

`uses` has the methods of any trained machine, `tables` adds DataFrames, `columns` prediction of columns, `gaps` missing
values and intervals, and `rbm` training. `input` and `training` hold the functions that check rows and weights.
"""

from tapmachine.apps.estimator.rbm import RBM as RBM

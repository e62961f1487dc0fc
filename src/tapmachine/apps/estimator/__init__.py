"""The scikit-learn estimator `RBM`, implemented as a chain of classes with one module each.

The module `uses` defines the methods of any fitted machine. `tables` adds support for DataFrames, `columns` adds the
prediction of columns, `gaps` adds intervals and multiple imputation, and `rbm` adds training. The modules `input` and
`training` contain functions that check rows and weights.
"""

from tapmachine.apps.estimator.rbm import RBM as RBM

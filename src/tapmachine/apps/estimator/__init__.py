"""The scikit-learn estimator `RBM`: the class, the validation of its input, and its training."""

from tapmachine.apps.estimator.rbm import RBM as RBM

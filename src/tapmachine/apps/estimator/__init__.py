"""Estimators of scikit-learn: `RBM`, its input and training, and estimators for one task on tables."""

from tapmachine.apps.estimator.pipelines import RBMClassifier as RBMClassifier
from tapmachine.apps.estimator.pipelines import RBMImputer as RBMImputer
from tapmachine.apps.estimator.pipelines import RBMRegressor as RBMRegressor
from tapmachine.apps.estimator.rbm import RBM as RBM

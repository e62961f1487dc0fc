"""Train, score, inspect and apply restricted and deep Boltzmann machines, based on the TAP mean-field approximation.

The most common functions and classes can be imported from `tapmachine` directly. All other functions and classes are in
the following modules:

- `tapmachine.units`: unit types and their base class `Units`
- `tapmachine.machine`: machines, conditioning, rescaling, Gibbs sampling, file formats
- `tapmachine.solver`: mean-field schemes, initial states, merging of solutions
- `tapmachine.likelihood`: estimators of the log-likelihood and their comparison
- `tapmachine.posterior`: denoising, imputation, anomaly scores
- `tapmachine.channels`: noisy channels
- `tapmachine.measurements`: measurements that mix units
- `tapmachine.training`: objectives, optimizers, monitors, pretraining
- `tapmachine.landscape`: mean-field solutions and their evolution during training
- `tapmachine.analysis`: features, receptive fields, comparison of schemes

Example:
    >>> import tapmachine
    >>> tapmachine.rbm(tapmachine.Binary(4), tapmachine.Binary(2)).weights[0].shape
    torch.Size([4, 2])
"""

from typing import TYPE_CHECKING

from tapmachine.lazy import lazy_names

__version__ = "0.1.0"

# The public names, in the order of the reference. Each is imported on first access, from where these statements say, so
# that the command line starts quickly.
if TYPE_CHECKING:  # isort: off
    from tapmachine.apps.estimator import RBM as RBM, RBMImputer as RBMImputer
    from tapmachine.apps.estimator import RBMClassifier as RBMClassifier, RBMRegressor as RBMRegressor
    from tapmachine.training import fit as fit, pretrain as pretrain, TAPObjective as TAPObjective, CD as CD, PCD as PCD
    from tapmachine.landscape import find_solutions as find_solutions
    from tapmachine.posterior import denoise as denoise, impute as impute, Posterior as Posterior
    from tapmachine.measurements import (
        recover as recover,
        LinearMeasurements as LinearMeasurements,
        SignMeasurements as SignMeasurements,
        MagnitudeMeasurements as MagnitudeMeasurements,
        QuantizedMeasurements as QuantizedMeasurements,
        CountMeasurements as CountMeasurements,
        FunctionOperator as FunctionOperator,
    )
    from tapmachine.channels import (
        BinarySymmetric as BinarySymmetric,
        Erasure as Erasure,
        GaussianNoise as GaussianNoise,
        PoissonNoise as PoissonNoise,
        CustomNoise as CustomNoise,
        Missing as Missing,
    )
    from tapmachine.machine import rbm as rbm, dbm as dbm, pairwise as pairwise, load as load, save as save
    from tapmachine.machine import clamp as clamp, condition as condition, gibbs as gibbs
    from tapmachine.units import (
        Binary as Binary,
        Spin as Spin,
        Categorical as Categorical,
        Gaussian as Gaussian,
        TruncatedGaussian as TruncatedGaussian,
        TruncatedGaussBernoulli as TruncatedGaussBernoulli,
        SpikeSlab as SpikeSlab,
        Poisson as Poisson,
        Mixed as Mixed,
        Custom as Custom,
        Units as Units,
    )
    from tapmachine.likelihood import (
        compare_likelihoods as compare_likelihoods,
        exact_log_likelihood as exact_log_likelihood,
        exact_log_partition as exact_log_partition,
        ais_log_likelihood as ais_log_likelihood,
        ais_log_partition as ais_log_partition,
        tap_log_likelihood as tap_log_likelihood,
        pseudo_log_likelihood as pseudo_log_likelihood,
    )
    from tapmachine.solver import solve as solve, Solution as Solution, TAP as TAP, NaiveMeanField as NaiveMeanField
    from tapmachine.solver import ThirdOrderTAP as ThirdOrderTAP, AdaptiveTAP as AdaptiveTAP
    from tapmachine.solver import BeliefPropagation as BeliefPropagation, RelaxedBP as RelaxedBP
    from tapmachine.beliefs import Tilt as Tilt, Moments as Moments
    from tapmachine.data.errors import TapmachineError as TapmachineError, TapmachineWarning as TapmachineWarning
    from tapmachine import units as units, machine as machine, solver as solver, likelihood as likelihood
    from tapmachine import posterior as posterior, channels as channels, measurements as measurements
    from tapmachine import training as training, landscape as landscape, analysis as analysis
# isort: on

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)

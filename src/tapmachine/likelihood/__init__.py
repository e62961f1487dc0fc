"""Log-likelihoods and ln Z, computed exactly, by TAP or by annealed importance sampling, and pseudo-likelihoods."""

from typing import TYPE_CHECKING

from tapmachine.lazy import lazy_names

if TYPE_CHECKING:
    from tapmachine.data.errors import EstimateError as EstimateError
    from tapmachine.data.errors import LikelihoodWarning as LikelihoodWarning
    from tapmachine.likelihood.annealing.estimate import AnnealedEstimate as AnnealedEstimate
    from tapmachine.likelihood.annealing.estimate import Annealing as Annealing
    from tapmachine.likelihood.annealing.estimate import ais_log_likelihood as ais_log_likelihood
    from tapmachine.likelihood.annealing.estimate import ais_log_partition as ais_log_partition
    from tapmachine.likelihood.check import Entropy as Entropy
    from tapmachine.likelihood.check import SampleCheck as SampleCheck
    from tapmachine.likelihood.check import check_samples as check_samples
    from tapmachine.likelihood.check import entropy as entropy
    from tapmachine.likelihood.compare import LikelihoodComparison as LikelihoodComparison
    from tapmachine.likelihood.compare import compare_likelihoods as compare_likelihoods
    from tapmachine.likelihood.exact import ExactMoments as ExactMoments
    from tapmachine.likelihood.exact import exact_log_likelihood as exact_log_likelihood
    from tapmachine.likelihood.exact import exact_log_partition as exact_log_partition
    from tapmachine.likelihood.exact import exact_moments as exact_moments
    from tapmachine.likelihood.pseudo import pseudo_log_likelihood as pseudo_log_likelihood
    from tapmachine.likelihood.result import LogLikelihood as LogLikelihood
    from tapmachine.likelihood.sampling import Equilibrium as Equilibrium
    from tapmachine.likelihood.sampling import equilibrium as equilibrium
    from tapmachine.likelihood.tap import tap_log_likelihood as tap_log_likelihood

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)

"""Boltzmann machines: construction, conditioning, rescaling, sampling, saving and exchange formats."""

from typing import TYPE_CHECKING

from tapmachine.lazy import lazy_names

if TYPE_CHECKING:
    from tapmachine.data.errors import FileError as FileError
    from tapmachine.machine.boltzmann import BoltzmannMachine as BoltzmannMachine
    from tapmachine.machine.boltzmann import dbm as dbm
    from tapmachine.machine.boltzmann import pairwise as pairwise
    from tapmachine.machine.boltzmann import rbm as rbm
    from tapmachine.machine.conditioning import clamp as clamp
    from tapmachine.machine.conditioning import condition as condition
    from tapmachine.machine.files import load as load
    from tapmachine.machine.files import save as save
    from tapmachine.machine.interchange import from_bernoulli_rbm as from_bernoulli_rbm
    from tapmachine.machine.interchange import read_rbms as read_rbms
    from tapmachine.machine.interchange import write_rbms as write_rbms
    from tapmachine.machine.rescaling import rescale as rescale
    from tapmachine.machine.sampler import gibbs as gibbs
    from tapmachine.machine.sampler import sample_solutions as sample_solutions

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)

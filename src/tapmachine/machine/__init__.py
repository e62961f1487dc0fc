"""Boltzmann machines: construction, conditioning, rescaling, sampling, saving and exchange formats."""

from tapmachine.data.errors import FileError
from tapmachine.machine.boltzmann import BoltzmannMachine, dbm, pairwise, rbm
from tapmachine.machine.conditioning import clamp, condition
from tapmachine.machine.files import load, save
from tapmachine.machine.interchange import from_bernoulli_rbm, read_rbms, write_rbms
from tapmachine.machine.rescaling import rescale
from tapmachine.machine.sampler import gibbs, sample_solutions

__all__ = [
    "BoltzmannMachine",
    "FileError",
    "clamp",
    "condition",
    "dbm",
    "from_bernoulli_rbm",
    "gibbs",
    "load",
    "pairwise",
    "rbm",
    "read_rbms",
    "rescale",
    "sample_solutions",
    "save",
    "write_rbms",
]

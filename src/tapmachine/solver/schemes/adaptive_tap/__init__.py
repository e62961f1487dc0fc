"""Adaptive TAP: `scheme` has the scheme, `iteration` its equations, `gaussian_side` the couplings in a Gaussian."""

"""Linear operators from signals to measurements: dense matrices, sparse matrices, and pairs of functions."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

MOST_DENSE = 2**26  # maximum number of entries of a sparse matrix that is converted to a dense one
N_PROBES = 32  # number of random vectors for estimating a function operator's norm
ADJOINT_TOLERANCE = 1e-3


class SingularValues(NamedTuple):
    """Singular values and right singular vectors of a matrix F = U diag(s) Vᵀ.

    Attributes:
        values: Singular values s, of shape (R,).
        right: Right singular vectors V, of shape (N, R).
    """

    values: Tensor
    right: Tensor


class Operator(ABC):
    """Base class for linear operators F that map signals of N components to M measurements.

    Each row of a tensor is a signal or its measurements.

    Attributes:
        shape: Number of measurements and number of components, (M, N).
    """

    shape: tuple[int, int]

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:  # (K, N) -> (K, M)
        """Compute the measurements Fx of signals x."""

    @abstractmethod
    def adjoint(self, z: Tensor) -> Tensor:  # (K, M) -> (K, N)
        """Compute Fᵀz."""

    @abstractmethod
    def forward_squares(self, x: Tensor) -> Tensor:  # (K, N) -> (K, M)
        """Compute F²x with the elementwise square of F, which maps component variances to measurement variances."""

    @abstractmethod
    def adjoint_squares(self, z: Tensor) -> Tensor:  # (K, M) -> (K, N)
        """Compute (F²)ᵀz with the elementwise square of F."""

    @abstractmethod
    def rows(self, index: Tensor) -> "Operator":
        """Return the operator of a subset of the measurements."""

    @abstractmethod
    def to(self, device: torch.device, dtype: torch.dtype) -> "Operator":
        """Return the operator on a device and in a dtype."""

    def singular_values(self) -> SingularValues | None:
        """Compute the singular value decomposition; None if it is not available."""
        return None

    def dense(self) -> Tensor | None:  # (M, N)
        """Return the operator as a dense matrix; None if it is not available or too large."""
        return None

    def unmeasured(self) -> Tensor | None:  # (N,), bool
        """Return a mask of the components on which no measurement depends; None if unknown."""
        return None


@final
class Matrix(Operator):
    """Operator with a dense matrix, or a sparse one in compressed sparse row format, of shape (M, N)."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix, self.shape = matrix, (matrix.shape[0], matrix.shape[1])
        self.is_dense = matrix.layout == torch.strided
        self._squares: Tensor | None = None
        self._singular_values: SingularValues | None = None

    @property
    def squares(self) -> Tensor:
        if self._squares is None:
            self._squares = self.matrix * self.matrix
        return self._squares

    def forward(self, x: Tensor) -> Tensor:
        return _applied(self.matrix, x)

    def adjoint(self, z: Tensor) -> Tensor:
        return _applied(self.matrix.t(), z)

    def forward_squares(self, x: Tensor) -> Tensor:
        return _applied(self.squares, x)

    def adjoint_squares(self, z: Tensor) -> Tensor:
        return _applied(self.squares.t(), z)

    def rows(self, index: Tensor) -> "Matrix":
        if self.is_dense:
            return Matrix(self.matrix[index])
        return Matrix(self.matrix.to_sparse_coo().index_select(0, index).to_sparse_csr())

    def to(self, device: torch.device, dtype: torch.dtype) -> "Matrix":
        moved = self.matrix.to(device, dtype)
        return self if moved is self.matrix else Matrix(moved)

    def singular_values(self) -> SingularValues | None:
        matrix = self.dense() if self._singular_values is None else None
        if matrix is not None:
            _, values, right = torch.linalg.svd(matrix.double(), full_matrices=False)
            self._singular_values = SingularValues(values.to(matrix.dtype), right.T.to(matrix.dtype))
        return self._singular_values

    def dense(self) -> Tensor | None:
        if self.is_dense:
            return self.matrix
        return self.matrix.to_dense() if self.shape[0] * self.shape[1] <= MOST_DENSE else None

    def unmeasured(self) -> Tensor:
        if self.is_dense:
            return ~(self.matrix != 0).any(0)
        ones = torch.ones(1, self.shape[0], dtype=self.matrix.dtype, device=self.matrix.device)
        return self.adjoint_squares(ones)[0] == 0


def _applied(matrix: Tensor, x: Tensor) -> Tensor:  # (M, N), (K, N) -> (K, M)
    """Multiply each row of x by a dense or sparse matrix."""
    return x @ matrix.T if matrix.layout == torch.strided else (matrix @ x.T).T


@final
class FunctionOperator(Operator):
    """Matrix-free operator defined by two functions, such as a blur or a subsampled Fourier transform.

    Algorithms that require the squares of the matrix entries use the mean square instead, which is estimated with
    random vectors.

    Args:
        forward: Function that maps signals, of shape (K, N), to measurements, of shape (K, M).
        adjoint: Transpose of `forward`, which maps tensors of shape (K, M) to tensors of shape (K, N).
        shape: Number of measurements and number of components, (M, N).

    Raises:
        ValueError: If a function returns a tensor of the wrong shape, or if `adjoint` is not the transpose of
            `forward`.

    Example:
        >>> import torch
        >>> from tapmachine import FunctionOperator
        >>> every_other = FunctionOperator(
        ...     lambda x: x[:, ::2], lambda z: torch.stack((z, 0 * z), -1).flatten(1), shape=(2, 4)
        ... )
        >>> every_other.forward(torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
        tensor([[1., 3.]])
    """

    def __init__(
        self, forward: Callable[[Tensor], Tensor], adjoint: Callable[[Tensor], Tensor], shape: tuple[int, int]
    ) -> None:
        self._forward, self._adjoint, self.shape = forward, adjoint, shape
        self._mean_square: float | None = None

    def forward(self, x: Tensor) -> Tensor:
        return self._forward(x)

    def adjoint(self, z: Tensor) -> Tensor:
        return self._adjoint(z)

    def forward_squares(self, x: Tensor) -> Tensor:
        return (self.mean_square(x) * x.sum(1, keepdim=True)).expand(-1, self.shape[0])

    def adjoint_squares(self, z: Tensor) -> Tensor:
        return (self.mean_square(z) * z.sum(1, keepdim=True)).expand(-1, self.shape[1])

    def mean_square(self, like: Tensor) -> float:
        """Estimate the mean square of the matrix entries, and check that `adjoint` is the transpose of `forward`."""
        if self._mean_square is None:
            draws = torch.Generator().manual_seed(0)
            x, z = (torch.randn(N_PROBES, size, generator=draws).to(like) for size in (self.shape[1], self.shape[0]))
            sent, returned = self._checked(self._forward(x), 0), self._checked(self._adjoint(z), 1)
            first, second = (sent * z).sum(1), (returned * x).sum(1)
            if float((first - second).norm()) > ADJOINT_TOLERANCE * float(sent.norm(dim=1).dot(z.norm(dim=1))):
                raise ValueError("FunctionOperator: adjoint is not the transpose of forward")
            self._mean_square = float(sent.square().mean()) / self.shape[1]
        return self._mean_square

    def _checked(self, values: Tensor, side: int) -> Tensor:
        expected = (N_PROBES, self.shape[side])
        if tuple(values.shape) != expected:
            name, given = (("forward", 1), ("adjoint", 0))[side]
            shape = (N_PROBES, self.shape[given])
            raise ValueError(
                f"FunctionOperator: {name} maps shape {shape} to {tuple(values.shape)}; expected {expected}"
            )
        return values

    def rows(self, index: Tensor) -> "FunctionOperator":
        size = self.shape[0]

        def adjoint(z: Tensor) -> Tensor:
            return self._adjoint(z.new_zeros(len(z), size).index_copy(1, index, z))

        return FunctionOperator(lambda x: self._forward(x)[:, index], adjoint, (len(index), self.shape[1]))

    def to(self, device: torch.device, dtype: torch.dtype) -> "FunctionOperator":
        return self


def as_operator(matrix: Any) -> Operator:
    """Convert a dense or sparse matrix from torch, NumPy or SciPy to an operator."""
    if isinstance(matrix, Operator):
        return matrix
    if isinstance(matrix, np.ndarray):
        matrix = torch.from_numpy(matrix)
    elif hasattr(matrix, "tocsr"):  # SciPy
        rows = matrix.tocsr()
        starts, columns, values = (torch.from_numpy(np.asarray(z)) for z in (rows.indptr, rows.indices, rows.data))
        with _without_notices():
            matrix = torch.sparse_csr_tensor(starts, columns, values, size=rows.shape)
    if not isinstance(matrix, Tensor):
        raise ValueError(
            f"matrix is a {type(matrix).__name__}; expected a tensor, an array, a sparse matrix or a FunctionOperator"
        )
    if matrix.dim() != 2 or 0 in matrix.shape:
        raise ValueError(f"matrix has shape {tuple(matrix.shape)}; expected (n_measurements, n_components)")
    if matrix.is_complex():
        raise ValueError("matrix is complex; expected a real matrix, such as the stacked real and imaginary parts")
    matrix = matrix.detach() if matrix.is_floating_point() else matrix.to(torch.get_default_dtype())
    if matrix.layout != torch.strided:
        with _without_notices():
            matrix = matrix.to_sparse_csr()
    _check_finite(matrix if matrix.layout == torch.strided else matrix.values())
    return Matrix(matrix)


@contextmanager
def _without_notices() -> Iterator[None]:
    """Context manager that suppresses torch's warning that sparse CSR tensors are in beta state."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse ", UserWarning)
        yield


def _check_finite(values: Tensor) -> None:
    bad = ~torch.isfinite(values)
    if bool(bad.any()):
        index = ", ".join(map(str, bad.nonzero()[0].tolist()))
        raise ValueError(f"matrix[{index}] is {float(values[bad][0])}; expected a finite number")

"""Exchange of machines with other packages: HDF5 files of rbms and clusterbm, and scikit-learn's BernoulliRBM."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tapmachine.data.checks import check_count
from tapmachine.data.errors import FileError
from tapmachine.machine.boltzmann import BoltzmannMachine, rbm
from tapmachine.units import Binary, Categorical

if TYPE_CHECKING:
    from sklearn.neural_network import BernoulliRBM

PARAMETERS = ("weight_matrix", "vbias", "hbias")


def read_rbms(path: str | Path, update: int | None = None) -> BoltzmannMachine:
    """Read a machine from an HDF5 file written by `rbms` or clusterbm.

    Args:
        path: Path of an HDF5 file. The hidden units must be binary, and the visible units must be binary or
            categorical.
        update: Number of the update to read (default: the last update in the file).

    Raises:
        FileError: If the file has a different format or does not contain the update.
        ImportError: If h5py is not installed.

    Example:
        >>> import tempfile
        >>> from tapmachine import Binary, rbm
        >>> from tapmachine.machine import read_rbms, write_rbms
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_rbms(rbm(Binary(4), Binary(2)), f"{folder}/machine.h5")
        ...     read_rbms(f"{folder}/machine.h5").sizes
        (4, 2)
    """
    h5py = _h5py()
    if not Path(path).is_file():
        raise FileError(f"{path}: file not found")
    try:
        with h5py.File(path, "r") as file:
            updates = _updates(file)
            if not updates:
                raise FileError(f"{path}: contains no update_N group; expected a file written by rbms")
            update = max(updates) if update is None else update
            if update not in updates:
                raise FileError(f"{path}: contains no update {update}; available: {', '.join(map(str, updates))}")
            group = file[f"update_{update}"]
            group = group.get("params", group)  # older files have no params group
            missing = [name for name in PARAMETERS if name not in group]
            if missing:
                raise FileError(f"{path}: update {update} has no {', '.join(missing)}")
            weights, visible, hidden = (np.asarray(group[name][()], np.float32) for name in PARAMETERS)
    except OSError as error:
        raise FileError(f"{path}: cannot be read as an HDF5 file: {error}") from None
    return _binary_hidden(str(path), weights, visible, hidden)


def write_rbms(machine: BoltzmannMachine, path: str | Path, update: int = 1) -> None:
    """Write a machine to an HDF5 file that `rbms` and clusterbm can read.

    Args:
        machine: A machine with one hidden layer of binary units, and binary or categorical visible units.
        path: Path to the HDF5 file. If the file exists, the machine is added as another update.
        update: Number of the update (default: 1).

    Example:
        >>> import tempfile
        >>> from tapmachine import Binary, rbm
        >>> from tapmachine.machine import read_rbms, write_rbms
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_rbms(rbm(Binary(4), Binary(2)), f"{folder}/machine.h5")
        ...     read_rbms(f"{folder}/machine.h5").sizes
        (4, 2)
    """
    h5py = _h5py()
    update = check_count("update", update, 0)
    layers = list(machine.layers)
    fits = len(layers) == 2 and isinstance(layers[0], Binary | Categorical) and isinstance(layers[1], Binary)
    if not fits:
        raise FileError(
            f"{path}: the machine is {machine.summary()}; expected binary hidden units, and binary or categorical "
            "visible units"
        )
    visible, hidden = (units.prior_field.detach().cpu().numpy() for units in layers if units.prior_field is not None)
    weights = machine.weights[0].detach().cpu().numpy()
    try:
        with h5py.File(path, "a") as file:
            if f"update_{update}" in file:
                raise FileError(f"{path}: the file already contains update {update}")
            group = file.create_group(f"update_{update}").create_group("params")
            values = (weights.reshape(*visible.shape, -1), visible, hidden)
            for name, value in zip(PARAMETERS, values, strict=True):
                group[name] = value.astype(np.float32)
            file[f"update_{update}"]["time"] = 0.0
            if "model_type" not in file:
                file["model_type"] = "BBRBM" if visible.ndim == 1 else "PBRBM"
    except OSError as error:
        raise FileError(f"{path}: cannot be written: {error}") from None


def from_bernoulli_rbm(model: "BernoulliRBM") -> BoltzmannMachine:
    """Convert a fitted scikit-learn BernoulliRBM to a machine.

    Args:
        model: Fitted `sklearn.neural_network.BernoulliRBM`.

    Example:
        >>> import numpy as np
        >>> from sklearn.neural_network import BernoulliRBM
        >>> from tapmachine.machine import from_bernoulli_rbm
        >>> model = BernoulliRBM(n_components=3, n_iter=1, random_state=0).fit(np.eye(6))
        >>> from_bernoulli_rbm(model).sizes
        (6, 3)
    """
    if not hasattr(model, "components_"):
        raise ValueError(f"this {type(model).__name__} is not fitted; call fit first")
    values = (model.components_.T, model.intercept_visible_, model.intercept_hidden_)
    return _binary_hidden("BernoulliRBM", *(np.asarray(value) for value in values))


def _binary_hidden(source: str, weights: Any, visible: Any, hidden: Any) -> BoltzmannMachine:
    values = [torch.from_numpy(np.array(value)) for value in (weights, visible, hidden)]
    w, v, h = (value if value.dtype == torch.float64 else value.float() for value in values)
    if v.dim() not in (1, 2) or h.dim() != 1 or w.shape != (*v.shape, *h.shape):
        shapes = ", ".join(f"{name} {tuple(z.shape)}" for name, z in zip(PARAMETERS, (w, v, h), strict=True))
        raise FileError(f"{source}: the shapes are inconsistent: {shapes}")
    if not all(bool(torch.isfinite(z).all()) for z in (w, v, h)):
        raise FileError(f"{source}: contains non-finite values")
    below: Binary | Categorical = Binary(len(v), v) if v.dim() == 1 else Categorical(len(v), v.shape[1], v)
    return rbm(below, Binary(len(h), h), w.flatten(0, -2))


def _updates(file: Any) -> list[int]:
    matches = (re.fullmatch(r"update_(\d+)", name) for name in file)
    return sorted(int(match[1]) for match in matches if match)


def _h5py() -> Any:
    try:
        import h5py  # type: ignore[import-untyped]
    except ImportError:
        raise ImportError("h5py is required for HDF5 files, but is not installed; run: pip install h5py") from None
    return h5py

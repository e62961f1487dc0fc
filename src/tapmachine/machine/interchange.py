"""Exchange of machines with other packages: HDF5 files of rbms and clusterbm, and scikit-learn's BernoulliRBM."""

import io
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from tapmachine.beliefs import Tilt
from tapmachine.data.checks import check_count
from tapmachine.data.errors import FileError
from tapmachine.data.files import read_bytes, write_atomically
from tapmachine.machine.boltzmann import BoltzmannMachine, rbm
from tapmachine.machine.sampler import gibbs
from tapmachine.units import Binary, Categorical

if TYPE_CHECKING:
    from sklearn.neural_network import BernoulliRBM

PARAMETERS = ("weight_matrix", "vbias", "hbias")
MODELS = {1: "BBRBM", 2: "PBRBM"}  # names in rbms of machines with binary or categorical visible units, by dimensions
N_CHAINS, CHAIN_SWEEPS = 100, 100  # chains that are drawn for a file, and sweeps of each
TRAINING = {"batch_size": 2000, "gibbs_steps": 100, "learning_rate": 0.01, "L1": 0.0, "L2": 0.0, "seed": 0}


def read_rbms(path: str | Path, update: int | None = None) -> BoltzmannMachine:
    """Read a machine from an HDF5 file written by `rbms` or clusterbm.

    Args:
        path: Path of an HDF5 file. The hidden units must be binary, and the visible units must be binary or
            categorical, with values 0 and 1.
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
            matches = (re.fullmatch(r"update_(\d+)", name) for name in file)
            updates = sorted(int(match[1]) for match in matches if match)
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
            model = file["model_type"].asstr()[()] if "model_type" in file else None
    except OSError as error:
        raise FileError(f"{path}: cannot be read as an HDF5 file: {error}") from None
    if model is not None and model != MODELS.get(visible.ndim):  # older files do not name the model
        raise FileError(f"{path}: the model is {model!r}; expected BBRBM (binary units) or PBRBM (categorical units)")
    return _binary_hidden(str(path), weights, visible, hidden)


def write_rbms(machine: BoltzmannMachine, path: str | Path, update: int = 1, chains: Tensor | None = None) -> None:
    """Write a machine to an HDF5 file that `rbms` and clusterbm can read.

    `rbms train --restore` continues the training from the machine and the chains in the file. Its settings are stored
    in the file, with the defaults of `rbms`, and can be changed by its options.

    Args:
        machine: A machine with one hidden layer of binary units, and binary or categorical visible units.
        path: Path to the HDF5 file. If the file exists, the machine is added as another update.
        update: Number of the update (default: 1).
        chains: States of the visible units in the Markov chains that `rbms` continues, of shape (n_chains, n_visible)
            (default: 100 chains with random initial states, after 100 Gibbs sweeps).

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
    content = io.BytesIO()  # an HDF5 file that cannot be written to the end is lost
    try:
        if Path(path).exists():
            content.write(read_bytes(path))
        with h5py.File(content, "a") as file:
            if f"update_{update}" in file:
                raise FileError(f"{path}: the file already contains update {update}")
            group = file.create_group(f"update_{update}").create_group("params")
            values = (weights.reshape(*visible.shape, -1), visible, hidden)
            for name, value in zip(PARAMETERS, values, strict=True):
                group[name] = value.astype(np.float32)
            _add_training(file, group.parent, _states(machine, chains), layers[1].n, path)
            if "model_type" not in file:
                file["model_type"] = MODELS[visible.ndim]
        write_atomically(path, content.getvalue())
    except OSError as error:
        raise FileError(f"{path}: cannot be written: {error.strerror or error}") from None


def _states(machine: BoltzmannMachine, chains: Tensor | None) -> Any:  # (n_chains, n_visible)
    """Return visible states for the chains, in the format of the data."""
    visible = machine.layers[0]
    if chains is None:
        generator = torch.Generator(machine.device).manual_seed(0)
        nothing = torch.zeros((N_CHAINS, *visible.state_shape), dtype=machine.dtype, device=machine.device)
        states = gibbs(machine, visible.sample(Tilt(nothing, 0.0), generator), CHAIN_SWEEPS, generator)[0]
    else:
        states = visible.check_states(chains.to(machine.device))
    return visible.to_data(states).cpu().numpy().astype(np.float32)


def _add_training(file: Any, update: Any, chains: Any, n_hidden: int, path: str | Path) -> None:
    """Add what `rbms` needs to continue: chains, settings, random states and the time of the update."""
    if "parallel_chains" in file:
        del file["parallel_chains"]  # those of the last update, as in rbms
    file["parallel_chains"] = chains
    settings = {"num_visibles": chains.shape[1], "num_hiddens": n_hidden, "num_chains": len(chains)}
    group = file.require_group("hyperparameters")
    for name, value in (settings | TRAINING | {"train_size": 1.0, "filename": str(path)}).items():
        if name not in group:
            group[name] = value
    update["time"] = 0.0
    update.create_group("flags")["checkpoint"] = True
    update["torch_rng_state"] = torch.Generator().manual_seed(0).get_state().numpy()
    for index, value in enumerate(np.random.RandomState(0).get_state()):
        update[f"numpy_rng_arg{index}"] = value


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


def _h5py() -> Any:
    try:
        import h5py  # type: ignore[import-untyped]
    except ImportError:
        raise ImportError("h5py is required for HDF5 files, but is not installed; run: pip install h5py") from None
    return h5py

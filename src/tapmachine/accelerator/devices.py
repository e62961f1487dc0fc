"""Choice of the device by name."""

import torch

from tapmachine.data.errors import SettingsError


def pick_device(name: str) -> str:
    """Return the device for a name: cpu, cuda, or auto (a GPU if available)."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise SettingsError("device is 'cuda', but no CUDA device is available; use cpu")
    if name not in ("cpu", "cuda"):
        raise SettingsError(f"device is {name!r}; expected cpu, cuda or auto")
    return name

"""What tests of several files start from."""

import numpy as np
import pytest
from run_cases import bars


@pytest.fixture
def data(tmp_path):
    """The path of a file of rows."""
    path = tmp_path / "bars.npy"
    np.save(path, bars())
    return str(path)

"""Estimator methods for single cells of tables: intervals, multiple imputation and surprise."""

from typing import Any

import numpy as np
import torch
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from tapmachine.apps.estimator.columns import ColumnMachine
from tapmachine.apps.estimator.tables import _has_schema
from tapmachine.apps.estimator.uses import Array
from tapmachine.data.checks import check_count
from tapmachine.likelihood.products import is_product_mixture
from tapmachine.likelihood.slabs import is_gaussian_mixture
from tapmachine.posterior.table import TablePosterior
from tapmachine.tables.frames import from_columns, from_numbers, library_of


class CellMachine(ColumnMachine):
    """Estimator methods for single cells of tables, based on exact posterior distributions."""

    def intervals(self, X: Any, level: float = 0.9) -> tuple[Any, Any]:
        """Compute central credible intervals of missing numbers given the observed cells of each row.

        Args:
            X: Rows with missing values.
            level: Probability that an interval contains the missing value (default: 0.9).

        Returns:
            The lower and upper ends of the intervals, with the type of X. For observed cells, both ends are equal to
            the observed value. Categorical and binary columns of DataFrames are omitted; use `predict_proba` for these
            columns.
        """
        ends = [end.cpu().numpy() for end in self._posterior(X).intervals(level)]
        if not _has_schema(self):
            return self._as_frame(ends[0], X), self._as_frame(ends[1], X)
        schema, library = self._schema(), library_of(X)
        assert library is not None
        numbers = [number for number, column in enumerate(schema.columns) if column.kind in ("real", "count")]
        frames = []
        for end in ends:
            decoded = schema.decode(end)
            frames.append(from_columns([decoded[k] for k in numbers], library, getattr(X, "index", None)))
        return frames[0], frames[1]

    def impute_draws(self, X: Any, n_draws: int = 10, random_state: Any = 0) -> list[Any]:
        """Draw missing values from their joint posterior distribution, for multiple imputation.

        Args:
            X: Rows with missing values.
            n_draws: Number of imputed tables (default: 10).
            random_state: Random seed (default: 0).

        Returns:
            A list of `n_draws` complete tables with the type of X.

        Example:
            >>> import numpy as np
            >>> from sklearn.datasets import load_iris
            >>> from tapmachine import RBM
            >>> x = load_iris().data
            >>> model = RBM(n_hidden=4).fit(x)
            >>> x[0, 2] = np.nan
            >>> [table.shape for table in model.impute_draws(x[:5], 2)]
            [(5, 4), (5, 4)]
        """
        check_count("n_draws", n_draws)
        posterior = self._posterior(X)
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        drawn = posterior.draws(n_draws, torch.Generator(posterior.x.device).manual_seed(seed))
        return [self._as_frame(rows.cpu().numpy(), X, keep=_has_schema(self)) for rows in drawn]

    def surprise(self, X: Any) -> Any:
        """Compute the surprise −ln P(x_ij | other cells of the row) of each cell in nats, (n_samples, n_features).

        High values indicate the cells that make a row unusual; `score_samples` scores whole rows. Densities of real
        columns are in the units of the data. The surprise of missing cells is NaN.
        """
        surprise: Array = self._posterior(X).cell_surprise().cpu().numpy()
        if _has_schema(self):
            schema = self._schema()
            surprise = schema.by_column(surprise) + schema.log_scales
        library = library_of(X)
        if library is None or self._frame is None:
            return surprise
        return from_numbers(surprise, self._frame.names, library, getattr(X, "index", None))

    def _posterior(self, X: Any) -> TablePosterior:
        check_is_fitted(self)
        if not (is_product_mixture(self._double) or is_gaussian_mixture(self._double)):
            raise ValueError(
                f"the machine is {self.machine_.summary()}; intervals, impute_draws and surprise require the default "
                "machine of a table, whose posterior is exact. For standard deviations, use impute(X, return_std=True)"
            )
        array = self._array(X, gaps=True)
        rows: Tensor = torch.from_numpy(np.asarray(array, np.float64)).to(self._double.device)
        return TablePosterior.of(self._double, rows)

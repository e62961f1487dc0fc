"""User interfaces: the estimator, the command line, the report page and the reproduction of the paper."""

"""What people use: the estimator, the command line, the report page, the reproduction of the paper."""

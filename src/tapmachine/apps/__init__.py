"""User interfaces: the scikit-learn estimator, the command line, the report page and the paper reproduction."""

"""Mean-field schemes: equations for the moments of a machine's units, and the corresponding free energy."""

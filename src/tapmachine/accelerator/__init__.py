"""Hardware support: compilation, number formats, CUDA graphs and multiple processes."""

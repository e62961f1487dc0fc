"""How work reaches the hardware: compilation, formats, CUDA graphs, several processes."""

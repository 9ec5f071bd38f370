"""What is predicted, without a simulation: one module or package per theory, in numpy, scipy and numba."""

"""PyTorch's function names and signatures over the ops: arguments are checked and normalised here, the ops compute."""

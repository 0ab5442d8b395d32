"""What resilin.utils.benchmark is made of, in the places where PyTorch has it."""

"""torch.ao: what libraries import of it beside their models for PyTorch's quantization, of which there is nothing."""

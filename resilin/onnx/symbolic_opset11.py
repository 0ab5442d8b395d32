"""torch.onnx.symbolic_opset11: torchvision describes its operators to an exporter by its names. There are none here."""

"""Export to ONNX: folders that run on ONNX Runtime and numpy, without torch and this package."""

"""ONNX files as plain data: models, graphs, nodes and tensors, read from protobuf messages."""

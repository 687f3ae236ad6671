"""The encoder in PyTorch: the network and its weights."""

"""What the model is: network, training, export and a torch-free runtime. Knows nothing of HTTP."""

"""All that serving needs of the model; imports neither torch nor transformers."""

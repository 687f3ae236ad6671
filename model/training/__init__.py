"""Fine-tuning: data readers, the training loop, reports."""

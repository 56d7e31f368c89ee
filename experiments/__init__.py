"""Training runs that reproduce published results: models, data, schedules and the training script."""

"""A pretrained model at longer contexts, by methods that need no training: settings, measurement, recommendation."""

"""Runs a generated file beside its model: the same outputs, the same gradients, the peak that was promised."""

"""Generates PyTorch source code that trains a model within a memory budget, exactly."""

__version__ = "0.1.0"

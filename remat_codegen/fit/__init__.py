"""Budgets and batch sizes that are found rather than given."""

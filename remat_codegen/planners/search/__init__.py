"""What improves a plan that is there: orders, and moves from one to the next."""

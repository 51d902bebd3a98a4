"""What is said beside a plan: what stands in the way of a smaller budget, and what would help."""

"""From traced operations to compute and data nodes, cut into blocks."""

"""From a schedule to a Python file. Pure: the same graph, profile and schedule give the same bytes."""

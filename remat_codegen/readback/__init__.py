"""From a generated file's source back to its schedule: what the functions do, read from their syntax trees, never run."""

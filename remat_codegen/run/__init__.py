"""From a request to its result: one module for each thing that the user can ask for. Sees everything else."""

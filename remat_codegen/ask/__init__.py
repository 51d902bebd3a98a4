"""What the user says: a model and what it is called with, a budget, a request."""

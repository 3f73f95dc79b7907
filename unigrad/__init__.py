"""One gradient contract over several deep-learning frameworks."""

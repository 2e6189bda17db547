"""For tests, of this package and of what is built on it."""

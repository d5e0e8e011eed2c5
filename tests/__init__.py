"""The tests, a file for each source file."""

"""The timer wheel."""

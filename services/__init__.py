"""The steps that move a timer from put to fired."""

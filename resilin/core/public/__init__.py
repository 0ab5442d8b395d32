"""The public surface: names and methods, who may take a call over, and what errors say of it."""

"""Attention: the equation, and one obvious place for each choice in it."""

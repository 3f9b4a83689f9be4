"""Texts, terminals, colours and files: how a figure is written."""

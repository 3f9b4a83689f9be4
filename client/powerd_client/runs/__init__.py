"""Run files: their schema, how they are made of journals, recovered and checked."""

"""Phases in trainers of other libraries: `powerd_client.callbacks.lightning`, `powerd_client.callbacks.transformers`.

Nothing is imported here: each needs its own library.
"""

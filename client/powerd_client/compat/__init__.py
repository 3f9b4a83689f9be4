"""Other tools' names over a recording of powerd: `powerd_client.compat.zeus` and `powerd_client.compat.codecarbon`."""

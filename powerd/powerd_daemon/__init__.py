"""The daemon: sources, samplers, the stream's server and the `powerd` command."""

"""The training side: phases, the recorder process and the run file."""

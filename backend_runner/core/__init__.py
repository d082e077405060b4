"""The runner's pure part: no I/O, no clock, standard library only."""

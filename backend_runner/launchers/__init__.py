"""Ways to start a worker. One so far: a process of this host."""

"""Where processes are started and ended: on this machine, and over SSH."""

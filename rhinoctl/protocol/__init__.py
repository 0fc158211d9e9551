"""The protocol, pure: no I/O, no clock, no chance, no logs. Time and chance are arguments."""

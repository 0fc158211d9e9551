"""rhinoctl: state of running Spark streaming jobs, moved while they run."""

__version__ = "0.1.0"

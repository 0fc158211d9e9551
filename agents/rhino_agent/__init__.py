"""The daemon on a worker and the instance processes that it supervises."""

"""Data: the playbooks, which the wheel carries as the package `rhinoctl_data.playbooks`."""
